"""Draws a diff as other tools do: what comes is green, what goes is red."""

from rich.text import Text

COLOURS = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}


def diff(text: str) -> Text:
    """Return the diff, in colours where there are some."""
    lines = (Text(line, _style(line)) for line in text.rstrip("\n").split("\n"))
    joined = Text("\n").join(lines)
    joined.no_wrap, joined.overflow = True, "ignore"
    return joined


def _style(line: str) -> str:
    return next((style for start, style in COLOURS.items() if line.startswith(start)), "")
