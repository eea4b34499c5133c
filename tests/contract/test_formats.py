"""What is stored and sent is what the golden files say, byte for byte, and is read back equal.

A file in `formats/` is never changed: nodes, checkpoints and buckets of that version have it. What
differs is a new version of the protocol, which gets a folder of its own
(`support/repo/formats.py`).
"""

import hashlib
import re
import zlib
from pathlib import Path
from typing import Any, get_args

import pytest
from spotelastic_checkpoints import messages
from spotelastic_checkpoints.peers.messages import PeerRequest
from support.repo import format_values
from support.repo.formats import FOLDER, Kind, kinds, write

from spotelastic.model.protocol import PROTOCOL
from spotelastic.model.round import Round
from spotelastic.store import codec, keys

DIGESTS = {
    "v1": "d0603e77d8f0fa8f51bb96f3990c9d10d90c6c9000236f02e59def94a076d535",
    "v1.1": "5ef3f90d60d875ae58337b433350a363d92a002269748640dd661ce27ad136b9",
}
"""Of all files of each version."""
KINDS = list(kinds())
VERSIONS = sorted(folder.name for folder in FOLDER.iterdir())
NEWEST = "v1.1"
"""The version that is written today."""


def files(version: str) -> list[Path]:
    return sorted(path for path in (FOLDER / version).rglob("*") if path.is_file())


def golden(version: str, kind: Kind) -> bytes:
    return kind.read((FOLDER / version / kind.file).read_bytes())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_written_today_is_what_the_file_says(kind: Kind) -> None:
    assert kind.encode(kind.value) == golden(NEWEST, kind)


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        (version, kind)
        for version in VERSIONS
        for kind in KINDS
        if kind.decode and (FOLDER / version / kind.file).exists()
    ],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_what_any_version_wrote_is_read_back_equal(version: str, kind: Kind) -> None:
    assert kind.decode is not None
    assert kind.decode(golden(version, kind)) == kind.value


@pytest.mark.parametrize("version", VERSIONS)
def test_no_golden_file_has_changed(version: str) -> None:
    """Not even together with the code: write the files of a new version instead."""
    digest = hashlib.sha256()
    for path in files(version):
        digest.update(f"{path.relative_to(FOLDER)}\n".encode() + path.read_bytes())
    assert digest.hexdigest() == DIGESTS[version]


def test_a_large_value_is_read_as_it_is_compressed() -> None:
    data = (FOLDER / NEWEST / "etcd/all-round.json").read_bytes()
    assert codec.decode(zlib.compress(data, 1), Round) == format_values.ROUND


def test_each_kind_has_a_file_and_each_file_a_kind() -> None:
    named = {str(path.relative_to(FOLDER / NEWEST)) for path in files(NEWEST)}
    assert named == {kind.file for kind in KINDS}
    assert len(KINDS) == len(named)


def test_the_newest_files_are_of_the_protocol_that_is_spoken() -> None:
    numbers = ".".join(map(str, PROTOCOL if PROTOCOL.minor else PROTOCOL[:1]))
    assert f"v{numbers}" == NEWEST == VERSIONS[-1]


NAMES = {"holder", "ranks", "group", "controller-leader", "controller-live"}
"""Keys that hold a name or an address alone."""


def test_each_key_of_the_table_has_a_golden_value() -> None:
    table = re.findall(r"^\| (\S+)", keys.__doc__ or "", re.MULTILINE)[1:]
    stems = {re.sub(r"/?<.*", "", key).replace("/", "-").removeprefix("all-") for key in table}
    stored = {kind.name.removeprefix("etcd/").removesuffix(".json") for kind in KINDS}
    missing = {stem for stem in stems - NAMES if not {stem, f"all-{stem}"} & stored}
    assert len(stems) > 20 and missing == set()


@pytest.mark.parametrize(
    ("union", "folder"),
    [(messages.Request, "daemon"), (messages.DaemonEvent, "daemon"), (PeerRequest, "peers")],
    ids=["requests", "events", "peers"],
)
def test_each_message_has_a_golden_file(union: Any, folder: str) -> None:
    names = {kind.name for kind in KINDS}
    assert {
        f"{folder}/{each.__name__}" for each in get_args(union) or union.__subclasses__()
    } <= names


def test_the_writer_never_writes_into_a_folder_that_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [path.read_bytes() for path in files(NEWEST)]
    assert write(NEWEST) == 2
    assert "never written again" in capsys.readouterr().err
    assert [path.read_bytes() for path in files(NEWEST)] == before
