"""Numbers the protocol: the version of messages, stored keys and objects, and shared memory.

Within one major version each side reads what the other writes. It ignores unknown fields, and keeps
unknown words. Another major version is refused with a line that names both sides. The section
"Versions" of docs/explanation/protocols.md says when which number changes.
"""

from typing import NamedTuple

import msgspec

from spotelastic_checkpoints import checksummed_json


class ProtocolVersion(NamedTuple):
    """A version of the protocol, stored as a list of two numbers."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


PROTOCOL = ProtocolVersion(1, 1)
"""The version that this installation speaks."""


def refusal(
    theirs: ProtocolVersion, them: str, us: str, ours: ProtocolVersion = PROTOCOL
) -> str | None:
    """Return why the two sides cannot work together; None if they can."""
    if theirs.major == ours.major:
        return None
    return (
        f"{them} speaks protocol {theirs}, and {us} speaks {ours}: "
        "install the same version of spotelastic on both"
    )


FORMAT = 1
"""The format number of manifests and other files beside checkpoints in the object store.

It grows independently of the protocol, as checkpoints outlive the versions that wrote them.
"""


class _Formatted(msgspec.Struct):
    """The one field that all formats have."""

    version: int = 0


def of_newer_format(data: bytes, what: str, reads: int = FORMAT) -> str | None:
    """Return why an object of a format above `reads` cannot be read; None if it can be.

    Also None for one that is not whole: its number cannot be believed.
    """
    try:
        found = checksummed_json.decode(data, _Formatted).version
    except msgspec.MsgspecError:
        return None
    if found <= reads:
        return None
    return (
        f"{what} has format {found}, of a newer version of spotelastic; this installation reads "
        f"formats up to {reads}: install the newer one"
    )
