"""Formats counts, sizes, losses and amounts for people."""

import math

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
UNPRICED = "prices are not known"
"""Stands in place of a cost where nobody knows the prices: those of pods."""


def counted(number: int, noun: str) -> str:
    """Return `1 worker`, `2 workers`, `0 workers`, `1,000 workers`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def size(nbytes: float) -> str:
    """Return a number of bytes with its unit and at most three significant digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} TB"


def duration(seconds: float) -> str:
    """Return seconds, or minutes from one minute on."""
    return f"{seconds:g} s" if seconds < 60.0 else f"{seconds / 60.0:g} min"


def loss(value: float) -> str:
    """Return a loss with four digits that count: `2.346`, `0.0004321`."""
    return f"{value:#.4g}".rstrip(".")


def usd(amount: float) -> str:
    """Return US dollars: cents, tenths of a cent below ten cents, and less as one digit."""
    if 0 < amount < 0.00095:
        return f"{amount:.{-math.floor(math.log10(amount))}f} USD"
    return f"{amount:,.2f} USD" if amount >= 0.1 else f"{amount:.3f} USD"


def dollars(amount: float) -> str:
    """Return US dollars with their sign.

    The amount is shown with cents; below ten cents with two significant digits; from ten thousand
    on in whole dollars.
    """
    if 0 < amount < 0.095:
        return f"${amount:.{1 - math.floor(math.log10(amount))}f}"
    return f"${amount:,.0f}" if amount >= 10_000.0 else f"${amount:,.2f}"


def percent(share: float, digits: int = 0) -> str:
    """Return a share for people. What is not whole is never 100%."""
    return f"{share if share >= 1 else min(share, 1 - 10.0 ** -(digits + 2)):.{digits}%}"


def saved(paid: float, elsewhere: float) -> str:
    """Return what part of the price elsewhere was saved, or was paid on top of it."""
    share = 1 - paid / elsewhere
    return f"{share:.0%} saved" if share >= 0 else f"{-share:.0%} more"


def span(seconds: float) -> str:
    """Return a length of time in the two units that matter: "0.59 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 10.0:
        return f"{seconds:.2f} s" if seconds != int(seconds) else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    for unit, name, below, its in (
        (DAY, "d", HOUR, "h"),
        (HOUR, "h", MINUTE, "min"),
        (MINUTE, "min", 1.0, "s"),
    ):
        if whole >= unit:
            rest = int(whole % unit // below)
            return f"{int(whole // unit)} {name}" + (f" {rest} {its}" if rest else "")
    raise AssertionError("a minute is longer than a second")
