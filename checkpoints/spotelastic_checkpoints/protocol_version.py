"""The version of everything that is stored or sent: keys, objects, messages, memory that is shared.

Within one major version each side reads what the other writes: it ignores fields that it does not
know, and keeps words that it does not know. Another major version is refused, by a line that names
both sides. docs/explanation/protocols.md, Versions, says when which number changes.
"""

from typing import NamedTuple

import msgspec


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


FORMAT = 1
"""Number of the format of what lies beside checkpoints in the object store.

It grows apart from the protocol: checkpoints outlive the versions that wrote them.
"""


class _Formatted(msgspec.Struct):
    """The one field that all formats have."""

    version: int = 0


def of_newer_format(data: bytes, what: str) -> str | None:
    """Why an object cannot be read: its format is newer than this installation. Else None."""
    try:
        found = msgspec.json.decode(data, type=_Formatted).version
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if found <= FORMAT:
        return None
    return (
        f"{what} has format {found}, of a newer version of spotelastic; this installation reads "
        f"formats up to {FORMAT}: install the newer one"
    )
