"""The protocol version of what is stored and sent, and words to which a later version may add.

`spotelastic_checkpoints.protocol_version` holds the number, because daemons speak it too.
"""

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.protocol_version import PROTOCOL, ProtocolVersion, refusal

if TYPE_CHECKING:
    from typing import Literal as Word
else:

    class Word:
        """`Word["a", "b"]`: a type checker allows these words alone; at run time every text is one.

        A newer node of the same protocol may write a word that this version does not know. It is
        kept as it is, and means nothing here.
        """

        def __class_getitem__(cls, words: object) -> type[str]:
            return str


__all__ = ["PROTOCOL", "ProtocolVersion", "Word", "keeping_unknown", "refusal", "unfit"]


class _Versioned(msgspec.Struct):
    """The field that every version finds in each stored value that has it."""

    protocol: ProtocolVersion | None = None


def unfit(data: bytes, what: str, us: str = "this installation") -> str | None:
    """Return why a JSON value of another major version cannot be used here, or None.

    Works on values that this version cannot read otherwise.
    """
    try:
        found = from_json(data, _Versioned).protocol
    except msgspec.MsgspecError:
        return None
    return None if found is None else refusal(found, what, us)


def keeping_unknown(before: bytes, changed: Any) -> bytes:
    """Return a dataclass as JSON, with the fields of `before` that this version does not know.

    A change to an object that a newer version wrote thus changes nothing else.
    """
    return msgspec.json.encode(_with_unknown(msgspec.json.decode(before), changed))


def _with_unknown(before: Any, changed: Any) -> Any:
    if not is_dataclass(changed) or not isinstance(before, dict):
        return changed
    known = {each.name: getattr(changed, each.name) for each in fields(changed)}
    return before | {name: _with_unknown(before.get(name), each) for name, each in known.items()}
