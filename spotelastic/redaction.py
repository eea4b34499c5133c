"""Replaces the values of secrets in text that is logged or shown (pure)."""

from collections.abc import Callable, Iterable

SHORTEST = 6
"""Shortest secret, in characters. Shorter values would also be replaced where they stand for
something else."""
REPLACEMENT = "***"


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces each secret, and each long line of one, in a text."""
    parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
    longest_first = sorted((p for p in parts if len(p) >= SHORTEST), key=len, reverse=True)

    def redact(text: str) -> str:
        for part in longest_first:
            text = text.replace(part, REPLACEMENT)
        return text

    return redact
