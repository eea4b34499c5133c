"""Everything that spotelastic raises on purpose.

    SpotelasticError
    ├── UsageError          the command or the script was given something wrong (exit code 2)
    ├── EnvironmentFailure  this machine or account lacks what is needed (exit code 2)
    ├── JobFailed           the user's script failed (exit code 1)
    │   └── WorkerFailed    and this worker was the first
    ├── Unavailable         something outside did not answer in time; a later try may succeed
    └── LeaseLost           this process no longer owns what it was writing under

A message says what happened, to what, and what to do next. A user sees the message alone, never a
traceback, for each of these.
"""


class SpotelasticError(Exception):
    """Base of every error raised on purpose."""

    exit_code = 1


class UsageError(SpotelasticError):
    """Wrong input; the message names the flag and the value."""

    exit_code = 2


class EnvironmentFailure(SpotelasticError):
    """The machine or the account lacks something; the message says what and how much."""

    exit_code = 2


class OtherVersion(EnvironmentFailure):
    """What is there speaks another protocol than this installation; the message names both."""


class JobFailed(SpotelasticError):
    """The user's script failed; the message holds the first failing rank's traceback."""


class WorkerFailed(JobFailed):
    """The first failure of a job that was given up."""

    def __init__(
        self, reason: str, node: str, rank: int, message: str, traceback: str, log: str
    ) -> None:
        told = (traceback or message).rstrip()
        super().__init__(f"{reason}; the first was rank {rank} on {node}: {told}")
        self.reason = reason
        self.node = node
        self.rank = rank
        self.message = message
        self.traceback = traceback
        """As text; empty where the worker could not write one."""
        self.log = log
        """Path on that node of what the worker printed."""


class Unavailable(SpotelasticError):
    """A service did not answer before its deadline."""


class LeaseLost(SpotelasticError):
    """The lease that a write depended on is gone."""


def told(error: Exception) -> str:
    """What people are told of it, whether it was raised on purpose or not."""
    return str(error) if isinstance(error, SpotelasticError) else f"{type(error).__name__}: {error}"
