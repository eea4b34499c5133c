"""The version of everything that is stored or sent: keys, objects, messages, memory that is shared.

Within one major version each side reads what the other writes: it ignores fields that it does not
know, and keeps words that it does not know. Another major version is refused, by a line that names
both sides. docs/explanation/protocols.md, Versions, says when which number changes.
"""

from typing import NamedTuple


class ProtocolVersion(NamedTuple):
    """Stored as a list of two numbers."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


PROTOCOL = ProtocolVersion(1, 0)
"""What this installation speaks."""


def refusal(
    theirs: ProtocolVersion, them: str, us: str, ours: ProtocolVersion = PROTOCOL
) -> str | None:
    """Why the two sides cannot work together; None where they can."""
    if theirs.major == ours.major:
        return None
    return (
        f"{them} speaks protocol {theirs}, and {us} speaks {ours}: "
        "install the same version of spotelastic on both"
    )
