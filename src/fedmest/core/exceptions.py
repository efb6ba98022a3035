"""Exceptions of the package: all of them are `FedmestError`, and each message is one line with the way out."""


class FedmestError(Exception):
    """Base class of the package's own exceptions.

    The message is one line: what is wrong, where, and how to fix it. The command line prints it and exits with 1;
    with 2 for an `InputError`.
    """


class InputError(FedmestError, ValueError):
    """A call, a file or data that cannot be used as given.

    Examples
    --------
    >>> import fedmest as fm
    >>> try:
    ...     fm.Federation.from_arrays([[1.0], [2.0]], [0, 1, 1], ["a", "b"])
    ... except fm.InputError as error:
    ...     print(error)
    y has shape (3,) where X has 2 rows; give one value per row
    """


class ConvergenceError(FedmestError):
    """An estimate is not finite, or a pooled fit did not converge.

    Nothing in the input is wrong by itself: more budget, fewer features or another method may help.
    """


class NoStandardErrors(FedmestError):
    """Standard errors, intervals or p-values were asked of a fit that has none; the message says why."""


class ScheduleError(FedmestError):
    """A method asked for a step that is not next in its schedule, or a schedule costs more than its budget.

    It points to a defect of a method, not of the input.
    """


class QuorumError(FedmestError):
    """Fewer sites answered than the study's quorum."""


INTERRUPTED = 130  # exit code after Ctrl-C


class Stopped(Exception):
    """A command ended early and kept what it had done so far; the message says so, `code` is the exit code."""

    def __init__(self, note: str, code: int) -> None:
        super().__init__(note)
        self.code = code
