"""Writes a small script that trains, to begin with."""

from pathlib import Path

from spotelastic.errors import UsageError

TEXT = Path(__file__).with_name("new_script.txt").read_text("utf-8")


def write_new(path: Path) -> None:
    """Write the script. Raises `UsageError` if there is a file of that name."""
    if path.suffix != ".py":
        raise UsageError(f"{path}: the name of a script ends with .py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEXT.replace("{name}", path.as_posix()))
    except FileExistsError:
        raise UsageError(
            f"{path} is there already: give another name, or make it elastic with "
            f"`spotelastic adapt {path}`"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
