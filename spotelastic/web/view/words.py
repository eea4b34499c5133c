"""Formats times, spans and texts for a page (pure)."""

import math
import time
import unicodedata
from datetime import datetime

from spotelastic.model import counting

span = counting.span
SHORT = 19
"""Most characters of a name in a narrow column: an EC2 instance's id has as many."""
UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Categories of characters that would change how the text around them is shown, or are none."""
KEPT = frozenset("\n\t\u200d")


def plain(text: str) -> str:
    """Return a text of unknown origin without what is no text.

    That is control characters, marks that turn the direction of writing around, and halves of
    characters.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in KEPT or unicodedata.category(char) not in UNPRINTABLE else "\ufffd"
        for char in text
    )


def short(node: str) -> str:
    """Return a node's name as it fits beside a lane or a line. Ends tell names of pods apart."""
    name = plain(node)
    return name if len(name) <= SHORT else f"…{name[1 - SHORT :]}"


def moment(at: float, now: float, clock: str = "%H:%M:%S") -> str:
    """Return the local time of day, with the date if that is another day than `now`'s."""
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime(clock, then)
    return f"{then.tm_mday} {time.strftime('%b %H:%M', then)}"


def minute(at: float, now: float) -> str:
    """Return the local time of day to the minute, with the date if that is another day."""
    return moment(at, now, "%H:%M")


def zoned(at: float, now: float) -> str:
    """Return the local time of day with its zone, where nothing else says which one that is."""
    return f"{moment(at, now)} {zone(at)}"


def zone(at: float) -> str:
    """Return the zone of local times as people write it: "UTC", "CEST", "+0530"."""
    return time.strftime("%Z", time.localtime(at)) or "UTC"


def exactly(at: float) -> str:
    """Return the local date and time with its offset from UTC: for programs, and for hovering."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


def ago(at: float, now: float) -> str:
    """Return how long ago something was: "12 s ago"."""
    seconds = now - at
    return "just now" if seconds < 2.0 else f"{span(math.floor(seconds))} ago"


def step_time(seconds: float) -> str:
    """Return the length of a step: "256 ms", "3.2 s"."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def ranks(given: tuple[int, ...]) -> str:
    """Return a node's ranks, which are consecutive: "8–15"."""
    return f"{given[0]}–{given[-1]}" if len(given) > 1 else "".join(map(str, given))


def utc_offset(at: float) -> int:
    """Return by how many seconds local time was ahead of UTC."""
    return time.localtime(at).tm_gmtoff
