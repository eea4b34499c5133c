"""Whatever a script has in its folder comes back as it was, or is told by its name.

Nothing of it keeps the rest from coming back.
"""

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spotelastic_checkpoints.files import keeping, placing
from spotelastic_checkpoints.files.keeping import RESTLESS
from support.draws import drawn
from support.saving.kept_files_run import Place

from spotelastic.client import kept_files

NAME = st.one_of(
    st.sampled_from(
        ["best.pt", "a b", "-x", "naïve", "a\nb", "x~1", "x.rank-1", "\udc80", " ", "..."]
    ),
    st.binary(min_size=1, max_size=30).map(os.fsdecode),
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=9),
).filter(lambda name: name not in (".", "..") and not {"/", "\0"} & {*name})
KINDS = (
    *("plain", "empty", "executable", "link", "dangling", "link out", "empty folder"),
    *("pipe", "socket", "unreadable", "changes once", "changes always", "of 2200", "of 1901"),
)
NEVER_KEPT = {"link out", "pipe", "socket", "unreadable"}
OF_ODD_TIMES = {"of 2200": 7_258_118_400, "of 1901": -2_177_452_800}


@dataclass(frozen=True)
class Thing:
    """What a script has made."""

    kind: str
    folder: str
    name: str

    @property
    def path(self) -> str:
        return f"out/{self.folder}/{self.name}" if self.folder else f"out/{self.name}"

    @property
    def shown(self) -> str:
        return self.path if self.path.isprintable() else repr(self.path)

    def make(self, base: Path) -> None:
        file = base / self.path
        file.parent.mkdir(parents=True, exist_ok=True)
        if self.kind in ("link", "dangling", "link out"):
            to = {"link": "plain-1", "dangling": "nowhere", "link out": "/etc/hostname"}
            file.symlink_to(to[self.kind])
        elif self.kind == "empty folder":
            file.mkdir()
        elif self.kind == "pipe":
            os.mkfifo(file)
        elif self.kind == "socket":
            with socket.socket(socket.AF_UNIX) as there:
                here = os.open(file.parent, os.O_RDONLY)
                try:
                    there.bind(f"/proc/self/fd/{here}/s")
                finally:
                    os.close(here)
            (file.parent / "s").rename(file)
        else:
            file.write_bytes(b"" if self.kind == "empty" else os.fsencode(self.path))
            if self.kind == "executable":
                file.chmod(0o755)
            at = OF_ODD_TIMES.get(self.kind, 1_000_000)
            os.utime(file, (at, at))


THINGS = st.lists(
    st.builds(Thing, st.sampled_from(KINDS), st.sampled_from(["", "deep", "de ep"]), NAME),
    max_size=12,
    unique_by=lambda thing: (thing.folder, thing.name),
)


def what(file: Path) -> tuple[object, ...] | None:
    """What counts of a file."""
    if not os.path.lexists(file):
        return None
    if file.is_symlink():
        return "link", file.readlink()
    if file.is_dir():
        return ("folder",)
    return file.read_bytes(), bool(file.stat().st_mode & stat.S_IXUSR)


@contextmanager
def unkind(base: Path, things: list[Thing]) -> Iterator[None]:
    """Some files cannot be read, also by root, and others change while they are."""
    kinds = {thing.path.removeprefix("out/"): thing.kind for thing in things}
    opened, read_piece, numbers = placing.opened, keeping.read_piece, count()
    to_change: list[str] = []

    @contextmanager
    def opening(root: Path, path: str) -> Iterator[int]:
        kind = kinds.get(path)
        if kind == "unreadable":
            raise PermissionError(13, "Permission denied")
        if kind == "changes always" or (kind == "changes once" and path in once):
            once.discard(path)
            to_change.append(path)
        with opened(root, path) as file:
            yield file

    def reading(*arguments: int) -> bytes | None:
        data = read_piece(*arguments)
        while to_change:
            (base / "out" / to_change.pop()).write_bytes(b"changed %d" % next(numbers))
        return data

    once = {path for path, kind in kinds.items() if kind == "changes once"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "opened", opening)
        patch.setattr(keeping, "read_piece", reading)
        yield


def check(base: Path, things: list[Thing], many: int = 0) -> None:
    plain = Thing("plain", "", "plain-1")
    things = [plain, *things] + [Thing("plain", "many", str(number)) for number in range(many)]
    place = Place(base)
    node = place.node("a")
    node.begin(0, place.claim())
    for thing in things:
        thing.make(base / "a")
    with unkind(base / "a", things):
        for seconds in (1.0, 5.0, RESTLESS, RESTLESS, RESTLESS):
            place.time.now += seconds
            node.keep(2)
        nobody_waits = node.keep(0)
    always = [thing for thing in things if thing.kind == "changes always"]
    assert nobody_waits or always
    second = place.node("b")
    second.begin(0, place.claim())
    second.put_back(0)
    kept_files.fetch(place.storage, base / "fetched")
    told = "\n".join(place.told)
    for thing in things:
        here = what(base / "a" / thing.path) if thing.kind not in ("pipe", "socket") else None
        for folder in ("b", "fetched"):
            there = what(base / folder / thing.path)
            if thing.kind in NEVER_KEPT or not thing.path.isprintable():
                assert there is None and f"{thing.shown} is not kept" in told, thing
            elif thing.kind == "changes always":
                assert there is not None or f"{thing.shown} changes all the time" in told
            else:
                assert there == here is not None, thing
    assert place.told == sorted(set(place.told), key=place.told.index), "each is told once"
    assert len(place.told) <= sum(
        thing.kind in {*NEVER_KEPT, "changes always"} or not thing.path.isprintable()
        for thing in things
    )


@settings(max_examples=drawn(60), deadline=None)
@given(THINGS)
@example([replace(Thing("", "", kind), kind=kind) for kind in KINDS])
def test_what_is_in_a_folder_comes_back_or_is_told(things: list[Thing]) -> None:
    taken = {"plain-1", "deep", "de ep"}
    with tempfile.TemporaryDirectory() as base:
        check(Path(base), [thing for thing in things if thing.name not in taken])


@pytest.mark.soak
def test_ten_thousand_small_files_come_back(tmp_path: Path) -> None:
    check(tmp_path, [Thing(kind, "", kind) for kind in KINDS], many=10_000)


def test_a_bit_that_changes_alone_comes_back(tmp_path: Path) -> None:
    place = Place(tmp_path)
    node = place.node("a")
    node.begin(0, place.claim())
    file = place.write("a", "out/run.sh", b"#!/bin/sh")
    changes: list[Callable[[], None]] = [lambda: file.chmod(0o755), lambda: file.chmod(0o644)]
    for number, change in enumerate(changes):
        node.keep(0)
        change()
        node.keep(0)
        second = place.node(f"b{number}")
        second.begin(0, node.epoch)
        second.put_back(0)
        found = what(tmp_path / f"b{number}/out/run.sh")
        assert found == (b"#!/bin/sh", number == 0)
