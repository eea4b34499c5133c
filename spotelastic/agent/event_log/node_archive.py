"""Packs what a node knows of itself for a bug report: state, event log, stacks, logs.

Nothing in it tells a secret: what a redactor knows is replaced, and the values of variables are
left out. Texts are cut to their ends, so that an archive stays small.
"""

import io
import sys
import tarfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from spotelastic_checkpoints.provenance import HIDDEN, without_secrets

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.event_log.log import LIMIT, EventLog, earlier, foreign
from spotelastic.agent.event_log.versions import versions
from spotelastic.clock import Clock, wall
from spotelastic.redaction import redactor, telling, without_known_formats

TEXT = 128 * 1024
"""Most bytes of one log: its end."""
ROUNDS = 3
"""The newest rounds whose logs are taken."""
FILES = 32
"""Most logs of one round."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """What must not be told, and how it is replaced in texts."""

    secrets: tuple[str, ...]

    @classmethod
    def of(cls, config: AgentConfig) -> "Redaction":
        typed = typed_secrets(config.command[1:])
        return cls((*config.secrets, config.token, *typed, *telling(config.env.values())))

    def text(self, text: str) -> str:
        return without_known_formats(redactor(self.secrets)(text))

    def json(self, value: object) -> bytes:
        """Return the value as JSON, each of its texts without secrets."""
        plain = msgspec.to_builtins(value, enc_hook=foreign)
        return msgspec.json.format(msgspec.json.encode(self._hidden(plain)))

    def _hidden(self, plain: Any) -> Any:
        if isinstance(plain, str):
            return self.text(plain)
        if isinstance(plain, dict):
            return {self.text(str(key)): self._hidden(item) for key, item in plain.items()}
        if isinstance(plain, list | tuple | set | frozenset):
            return [self._hidden(item) for item in plain]
        return plain


def typed_secrets(args: Sequence[str]) -> tuple[str, ...]:
    """Return the values of arguments whose names suggest a secret. A script may print them."""
    pairs = zip(args, without_secrets(args), strict=True)
    hidden = [arg.removeprefix(kept.removesuffix(HIDDEN)) for arg, kept in pairs if arg != kept]
    return telling(hidden)


def pack(config: AgentConfig, log: EventLog, why: str, clock: Clock = wall) -> bytes:
    """Return the node's archive (tar.gz). `why`: for people, what it was made for."""
    hide = Redaction.of(config)
    return archive(_contents(config, log, hide, why, clock()), clock())


def archive(files: Iterable[tuple[str, bytes]], at: float) -> bytes:
    """Return an archive (tar.gz) of these files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=3) as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), int(at)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _contents(
    config: AgentConfig, log: EventLog, hide: Redaction, why: str, at: float
) -> Iterator[tuple[str, bytes]]:
    parts: Iterable[tuple[str, Callable[[], bytes]]] = (
        ("node.json", lambda: hide.json(_about(config, log, why, at))),
        ("state.json", lambda: hide.json(log.state)),
        ("run.json", lambda: hide.json(log.seen)),
        ("stacks.txt", lambda: hide.text(_stacks()).encode()),
    )
    for name, make in parts:
        yield _or_why(name, make)
    for path in (earlier(log.path), log.path):
        if path.exists():
            yield _or_why(f"events/{path.name}", partial(_end, path, hide, 2 * LIMIT))
    folder = config.logs or config.state / "logs"
    for path in _logs(folder):
        yield _or_why(f"logs/{path.relative_to(folder)}", partial(_end, path, hide))


def _or_why(name: str, make: Callable[[], bytes]) -> tuple[str, bytes]:
    """Return a file, or in place of it why it could not be made: the others are of use."""
    try:
        return name, make()
    except Exception as error:
        return f"{name}.error", f"{type(error).__name__}: {error}\n".encode(errors="replace")


def _about(config: AgentConfig, log: EventLog, why: str, at: float) -> Mapping[str, object]:
    found = log.state.membership.fingerprint
    return {
        "node": config.node,
        "run": config.run,
        "zone": config.zone,
        "spot": config.spot,
        "why": why,
        "made_at": at,
        "entry": config.entry,
        "variables": sorted(config.env),
        "versions": versions() | ({"workers": found} if found is not None else {}),
    }


def _stacks() -> str:
    """Return where each thread of this process stands."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    told = []
    for ident, frame in sys._current_frames().items():
        told += [f"thread {names.get(ident, ident)}:\n", *traceback.format_stack(frame), "\n"]
    return "".join(told)


def _logs(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    yield from sorted(folder.glob("*.log"))
    rounds = sorted(each for each in folder.iterdir() if each.is_dir() and each.name.isdigit())
    for each in rounds[-ROUNDS:]:
        yield from sorted(path for path in each.iterdir() if path.is_file())[:FILES]


def _end(path: Path, hide: Redaction, most: int = TEXT) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - most))
        data = file.read(most)
    cut = f"[{size - most} bytes before]\n" if size > most else ""
    return hide.text(cut + data.decode(errors="replace")).encode()
