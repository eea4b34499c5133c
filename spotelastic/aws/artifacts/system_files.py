"""Recognizes the files that macOS and Windows leave in folders beside the user's own.

They appear when somebody looks into a folder or copies it. Shipped, each would be a change of the
code, for which all workers start again.
"""

from pathlib import Path

_NAMES = frozenset(
    {
        *(".AppleDB", ".AppleDesktop", ".AppleDouble", ".DS_Store", ".DocumentRevisions-V100"),
        *(".Spotlight-V100", ".TemporaryItems", ".Trashes", ".VolumeIcon.icns", ".apdisk"),
        *(".fseventsd", ".localized", "Icon\r", "__MACOSX"),
        *("$RECYCLE.BIN", "Thumbs.db", "desktop.ini", "ehthumbs.db"),
    }
)
_APPLE_DOUBLE = "._"
"""What the name of a file begins with that holds another one's attributes, on a disk or share that
cannot store them."""
_MARK = ":Zone.Identifier"
"""What the name of a file ends in by which Windows remembers, in WSL, where another one is from."""


def left_by_system(path: Path) -> bool:
    """Whether a file or folder is the operating system's, and not the user's."""
    return path.name in _NAMES or path.name.startswith(_APPLE_DOUBLE) or path.name.endswith(_MARK)
