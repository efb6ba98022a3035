"""The one exception that says: the call or the input is wrong, and here is the way out."""


class InputError(ValueError):
    """A fault in what the user handed over. Its message is one line: what is wrong, where, and how to mend it."""


INTERRUPTED = 130  # exit code after Ctrl-C


class Stopped(Exception):
    """The end, before its time, of a command that keeps what it has done so far, and says so."""

    def __init__(self, note: str, code: int) -> None:
        super().__init__(note)
        self.code = code
