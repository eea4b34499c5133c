"""Says what to install where a library is missing or too old for its plug-in."""

import re
from importlib.metadata import PackageNotFoundError, version

LEAST = {
    "accelerate": ("1.10", "accelerate"),
    "lightning": ("2.6", "lightning"),
    "transformers": ("5.5", "transformers[torch]"),
}
"""The least version of each distribution, and what pip is to be asked for."""


def require(name: str) -> None:
    """Raise `ModuleNotFoundError` unless this distribution is installed, and new enough."""
    least, wanted = LEAST[name]
    needs = f"spotelastic.integrations.{name} needs {name}"
    install = f"pip install '{wanted}>={least}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        raise ModuleNotFoundError(f"{needs}: {install}", name=name) from None
    if _numbers(found) < _numbers(least):
        raise ImportError(
            f"{needs} {least} or newer, and {found} is installed: {install}", name=name
        )


def _numbers(told: str) -> list[int]:
    """Return the first two numbers of a release: [2, 6] of "2.6rc1"."""
    return [int(each) for each in re.findall(r"\d+", told)[:2]]
