"""Says what to install where a library is missing or too old for its plug-in."""

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
    found = _installed(name)
    needs = f"spotelastic.integrations.{name} needs {name}"
    install = f"pip install '{wanted}>={least}'"
    if found is None:
        raise ModuleNotFoundError(f"{needs}: {install}", name=name)
    if _numbers(found) < _numbers(least):
        raise ImportError(
            f"{needs} {least} or newer, and {found} is installed: {install}", name=name
        )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(told: str) -> tuple[int, ...]:
    """Return the release as numbers, as far as they go: (2, 6) of "2.6rc1"."""
    numbers: list[int] = []
    for part in told.split(".")[:3]:
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
