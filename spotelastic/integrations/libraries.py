"""Says what to install where a library is missing or too old for its plug-in."""

from importlib.metadata import PackageNotFoundError, version

LEAST = {
    "accelerate": ("1.10", "accelerate"),
    "lightning": ("2.6", "lightning"),
    "mlflow": ("2.13", "mlflow"),
    "mlflow-skinny": ("2.13", "mlflow"),
    "tensorboard": ("2.14", "tensorboard"),
    "transformers": ("5.5", "transformers[torch]"),
    "wandb": ("0.19", "wandb"),
}
"""The least version of each distribution, and what pip is to be asked for."""


def require(*names: str) -> None:
    """Raise `ModuleNotFoundError` unless one of these distributions is installed, and new enough.

    Several names are one library under different names.
    """
    least, wanted = LEAST[names[0]]
    found = [there for name in names if (there := _installed(name)) is not None]
    install = f"pip install '{wanted}>={least}'"
    if not found:
        raise ModuleNotFoundError(
            f"spotelastic.integrations.{names[0]} needs {names[0]}: {install}", name=names[0]
        )
    if max(map(_numbers, found)) < _numbers(least):
        raise ImportError(
            f"spotelastic.integrations.{names[0]} needs {names[0]} {least} or newer, and "
            f"{found[0]} is installed: {install}",
            name=names[0],
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
