"""Replaces what must not be told in the texts of a dump.

Must never happen: a dump tells a secret. What a redactor knows is replaced, and the values of
variables are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from spotelastic_checkpoints.provenance import HIDDEN, without_secrets

from spotelastic.redaction import redactor, telling, without_known_formats


@dataclass(frozen=True, slots=True)
class Redaction:
    """What must not be told, and how it is replaced in texts."""

    secrets: tuple[str, ...]

    def text(self, text: str) -> str:
        return without_known_formats(redactor(self.secrets)(text))

    def json(self, value: object) -> bytes:
        """Return the value as JSON, each of its texts without secrets."""
        plain = self._hidden(msgspec.to_builtins(value))
        return msgspec.json.format(msgspec.json.encode(plain))

    def _hidden(self, plain: Any) -> Any:
        if isinstance(plain, str):
            return self.text(plain)
        if isinstance(plain, dict):
            return {self.text(str(key)): self._hidden(item) for key, item in plain.items()}
        if isinstance(plain, list | tuple):
            return [self._hidden(item) for item in plain]
        return plain


def typed_secrets(args: Sequence[str]) -> tuple[str, ...]:
    """Return the values of arguments whose names suggest a secret. A script may print them."""
    pairs = zip(args, without_secrets(args), strict=True)
    hidden = [arg.removeprefix(kept.removesuffix(HIDDEN)) for arg, kept in pairs if arg != kept]
    return telling(hidden)
