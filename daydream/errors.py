"""The errors daydream raises.

DaydreamError                  anything the user can put right; the command line prints it in one line, exit 1
├── TraceError                 a file is not a usable trace (also a ValueError)
│   └── FileError              a file cannot be read, or one beside the trace cannot be used; it is named
├── GraphError                 an edit or a graph makes no sense (also a ValueError)
│   └── NoMatchError           an edit matched no task
│       └── NotApplicableError an optimization has nothing to change in this trace, and says why
├── HandleError                a map of debug handles makes no sense or does not fit (also a ValueError)
├── UnknownOptimizationError   no optimization of that name (also a LookupError)
├── MissingPackageError      a package that an extra installs is missing (also an ImportError)
└── OutputError                a result cannot be written (also an OSError)
"""

INSTALL = "pip install -e '.[{}]' in daydream's checkout"  # on package indexes the name is another project's


class DaydreamError(Exception):
    """What was found, what was needed, what to do, in one message."""

    exit_code = 1


class TraceError(DaydreamError, ValueError):
    """A file is not a usable trace."""


class FileError(TraceError):
    """A file cannot be read at all, or one beside the trace (times, counters) cannot be used; it is named."""


class GraphError(DaydreamError, ValueError):
    """An edit or a graph makes no sense."""


class NoMatchError(GraphError):
    """An edit matched no task."""


class NotApplicableError(NoMatchError):
    """An optimization has nothing to change in this trace; the message says why.

    Where the trace may have no work of a "device" or of several "ranks" at all, `lacks` says which.
    """

    def __init__(self, reason: str, *, lacks: str | None = None) -> None:
        super().__init__(reason)
        self.lacks = lacks


class HandleError(DaydreamError, ValueError):
    """A map of debug handles makes no sense, or does not fit its trace."""


class UnknownOptimizationError(DaydreamError, LookupError):
    """No optimization has the name that was asked for."""


class MissingPackageError(DaydreamError, ImportError):
    """A package that an extra of daydream installs is missing, or too old."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"the package `{package}` is not installed: {INSTALL.format(extra)}")


class OutputError(DaydreamError, OSError):
    """A result cannot be written."""
