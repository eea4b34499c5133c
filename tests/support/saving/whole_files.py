"""Files that a running process reads while a test writes them."""

from pathlib import Path


def put(path: Path, text: str) -> None:
    """Whoever reads sees what was there before, or all of the text: and never a part of it."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text)
    beside.replace(path)
