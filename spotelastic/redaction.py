"""Pure: keeps the values of secrets out of what is told."""

from collections.abc import Callable, Iterable

SHORTEST = 6
"""Characters: what is shorter would also be blotted out where it is something else."""
BLOT = "***"


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that replaces each secret, and each long line of one, wherever it stands."""
    parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
    longest_first = sorted((p for p in parts if len(p) >= SHORTEST), key=len, reverse=True)

    def blot(text: str) -> str:
        for part in longest_first:
            text = text.replace(part, BLOT)
        return text

    return blot
