"""Defines the errors that spotelastic raises on purpose, and their exit codes.

    SpotelasticError
    ├── UsageError          wrong input from the command line or the script (exit code 2)
    │   ├── NotConfirmed    something that is done only if it is meant, and nobody said so
    │   └── SeveralClusters no cluster was named, and there are several
    ├── EnvironmentFailure  this machine or account lacks something (exit code 2)
    ├── JobFailed           the user's script failed (exit code 1)
    │   └── WorkerFailed    the same, with the worker that failed first
    ├── Unavailable         an outside service did not answer in time; retrying may help
    └── LeaseLost           this process lost the lease under which it writes

A message says what happened, to what, and what to do next. For each of these errors the user sees
only the message, never a traceback.
"""

from collections.abc import Sequence


class SpotelasticError(Exception):
    """Base class of the errors that are raised on purpose."""

    exit_code = 1


class UsageError(SpotelasticError):
    """Wrong input. The message names the flag and the value."""

    exit_code = 2


class RehearsalDiffers(UsageError):
    """A step does not come back as it was, in a run that was to end then. No start changes that."""


class NotConfirmed(UsageError):
    """Nothing was done, because nobody confirmed a price, a change or a deletion."""


class SeveralClusters(UsageError):
    """No cluster was named, and there are several."""

    def __init__(self, names: Sequence[str], by: str = "") -> None:
        """`by` is the option that names one; empty where the name is an argument."""
        how = f" with {by}" if by else ""
        super().__init__(f"there are several clusters; name one{how}: {', '.join(names)}")
        self.names = tuple(names)


class EnvironmentFailure(SpotelasticError):
    """The machine or the account lacks something. The message says what, and how much of it."""

    exit_code = 2


class OtherVersion(EnvironmentFailure):
    """What is there speaks another protocol than this installation; the message names both."""


class JobFailed(SpotelasticError):
    """The user's script failed. The message holds the traceback of the first rank that failed."""


class WorkerFailed(JobFailed):
    """A job was given up. Describes the worker that failed first."""

    def __init__(
        self, reason: str, node: str, rank: int, message: str, traceback: str, log: str
    ) -> None:
        cause = (traceback or message).rstrip()
        super().__init__(f"{reason}; the first was rank {rank} on {node}: {cause}")
        self.reason = reason
        self.node = node
        self.rank = rank
        self.message = message
        self.traceback = traceback
        """The traceback as text; empty if the worker could not write one."""
        self.log = log
        """Path, on that node, of the file that holds the worker's output."""


class Unavailable(SpotelasticError):
    """A service did not answer before its deadline."""


class LeaseLost(SpotelasticError):
    """The lease that a write depended on has expired."""


def told(error: Exception) -> str:
    """Return the text of an error for the user.

    The type's name is added if the error was not raised on purpose.
    """
    return str(error) if isinstance(error, SpotelasticError) else f"{type(error).__name__}: {error}"
