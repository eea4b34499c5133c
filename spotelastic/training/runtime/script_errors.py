"""A mistake in a script is told in one line, as everywhere (errors.py), where nobody else tells."""

import sys
from types import TracebackType

from spotelastic.errors import SpotelasticError


def tell_mistakes_in_a_line() -> None:
    """From now on, for what ends this process; another's hook for errors is left alone."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, SpotelasticError):
        print(f"spotelastic: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
