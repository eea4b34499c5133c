"""Everything that spotelastic raises on purpose.

    SpotelasticError
    ├── UsageError          the command or the script was given something wrong (exit code 2)
    ├── EnvironmentFailure  this machine or account lacks what is needed (exit code 2)
    ├── JobFailed           the user's script failed (exit code 1)
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


class JobFailed(SpotelasticError):
    """The user's script failed; the message holds the first failing rank's traceback."""


class Unavailable(SpotelasticError):
    """A service did not answer before its deadline."""


class LeaseLost(SpotelasticError):
    """The lease that a write depended on is gone."""
