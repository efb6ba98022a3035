"""The one exception that says: the call or the input is wrong, and here is the way out."""


class InputError(ValueError):
    """A fault in what the user handed over. Its message is one line: what is wrong, where, and how to mend it."""
