"""Makes a user's mistake end a script with one line on stderr instead of a traceback."""

import sys
from types import TracebackType

from spotelastic.errors import SpotelasticError


def tell_mistakes_in_a_line() -> None:
    """Install the hook for uncaught errors, unless the script has one of its own."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, SpotelasticError):
        print(f"spotelastic: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
