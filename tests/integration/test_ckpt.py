"""`spotelastic ckpt` on checkpoints that two ranks have saved, with tensors cut both ways."""

import json
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import xxhash
from spotelastic_checkpoints.catalog import safetensors_export
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.format import encoding, layout, manifest
from spotelastic_checkpoints.format.layout import Declaration, Declared
from spotelastic_checkpoints.format.manifest import Manifest, Shard
from spotelastic_checkpoints.protocol_version import FORMAT
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.storage.object_store import Blob, unseen
from spotelastic_checkpoints.storage.outage_retry import OutagePatience
from spotelastic_checkpoints.types import Commit
from support.processes.patience import PATIENT
from support.saving.ckpt_command import ckpt, fine, refused
from torch.distributed.checkpoint import FileSystemReader

from spotelastic.cli.commands import ckpt as commands
from spotelastic.model.counting import size

STATE: dict[str, Any] = {
    "model": {
        "rows": torch.arange(24.0).view(6, 4),
        "columns": torch.arange(30, dtype=torch.bfloat16).view(5, 6),
        "middle": torch.arange(48, dtype=torch.int64).view(2, 4, 6),
        "scalar": torch.tensor(3.5),
    },
    "epoch": 7,
}
CUTS = {"rows": 0, "columns": 1, "middle": 1}
"""The axis along which two ranks share a tensor."""


def declarations() -> list[list[tuple[Declared, bytes]]]:
    """By rank: what it has, and the bytes of it."""
    ranks: list[list[tuple[Declared, bytes]]] = [[], []]
    for name, tensor in STATE["model"].items():
        axis = CUTS.get(name)
        parts = [tensor] if axis is None else tensor.split([1, tensor.shape[axis] - 1], axis)
        start = 0
        for rank, part in enumerate(parts):
            offsets = [0] * tensor.dim()
            if axis is not None:
                offsets[axis], start = start, start + part.shape[axis]
            fqn, dtype = f"model.{name}", str(tensor.dtype).removeprefix("torch.")
            declared = Declared(
                fqn, ("model", name), dtype, tuple(tensor.shape), tuple(offsets), tuple(part.shape)
            )
            raw = part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            data = encoding.tensor_prefix(dtype, tuple(part.shape)) + raw
            ranks[rank].append((declared, data))
    value = encoding.plain_value(STATE["epoch"])
    ranks[0].append((Declared("epoch", ("epoch",), room=256), value))
    own = encoding.plain_value("of rank 1 alone")
    ranks[1].append((Declared("rng", ("rng",), rank=1, room=256), own))
    return ranks


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run with the committed steps 10 and 20, and 30 without its record."""
    storage = FolderStorage(tmp_path / "run")
    commits = Commits(storage, "job")
    epoch = commits.claim().epoch
    ranks = declarations()
    plan = layout.plan(
        [Declaration(r, f"n{r}", tuple(d for d, _ in held)) for r, held in enumerate(ranks)]
    )
    for step in (10, 20, 30):
        for rank, held in enumerate(ranks):
            data = {declared.key: content for declared, content in held}
            slot = plan.slots[rank]
            memory, items = bytearray(slot.owned_bytes), []
            for item in slot.items:
                content = data[item.key]
                memory[item.offset : item.offset + len(content)] = content
                digest = xxhash.xxh3_64_hexdigest(content)
                items.append(msgspec.structs.replace(item, length=len(content), checksum=digest))
            name = manifest.shard_name(rank, 0)
            commits.put_shard(Commit(epoch, step), name, memoryview(memory))
            commits.put_manifest(
                Manifest(
                    version=FORMAT,
                    epoch=epoch,
                    step=step,
                    incarnation="round",
                    layout=plan.hash,
                    rank=rank,
                    world_size=2,
                    chunks=plan.chunks,
                    shards=(Shard(name, slot.owned_bytes, tuple(items)),),
                )
            )
        if step < 30:
            assert commits.commit(Commit(epoch, step), epoch)
    return tmp_path / "run"


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, torch.Tensor):
        return found.dtype == wanted.dtype and torch.equal(found, wanted)
    return bool(found == wanted)


def read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__")
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}
    return {
        name: torch.frombuffer(
            bytearray(data[start + told["data_offsets"][0] : start + told["data_offsets"][1]]),
            dtype=dtypes[told["dtype"]],
        ).view(told["shape"])
        for name, told in header.items()
    }


def test_steps_and_tensors_are_listed(saved: Path) -> None:
    steps = json.loads(fine("ls", saved, "--json"))
    assert [(s["step"], s["state"], s["latest"], s["world_size"]) for s in steps] == [
        (10, "committed", False, 2),
        (20, "committed", True, 2),
        (30, "incomplete", False, 0),
    ]
    written = [datetime.fromisoformat(s["written"]) for s in steps]
    assert all(timedelta() < datetime.now(UTC) - at < timedelta(hours=1) for at in written)
    tensors = {t["name"]: t for t in json.loads(fine("inspect", saved, "--json"))}
    assert tensors["model.columns"] == {
        "name": "model.columns",
        "dtype": "bfloat16",
        "shape": [5, 6],
        "shards": 2,
        "nbytes": 60,
    }
    assert tensors["epoch"]["dtype"] == "value"
    assert "5x6" in fine("inspect", f"{saved}@10")


def test_a_step_is_as_old_as_its_shards_whatever_was_pinned_since(saved: Path) -> None:
    two_days_ago = time.time() - 2.5 * 86400
    for file in (saved / "1/step-00000010").rglob("*.*"):
        os.utime(file, (two_days_ago, two_days_ago))
    fine("pin", f"{saved}@10")
    row = next(line.split() for line in fine("ls", saved).splitlines() if line.startswith("  10"))
    nbytes = sum(file.stat().st_size for file in (saved / "1/step-00000010").glob("*.distcp"))
    assert row == [
        "10",
        "1",
        "committed",
        *("2", "d", "12", "h", "ago"),
        *size(nbytes).split(),
        "2",
        "–",
        "pinned",
    ]


def test_a_flipped_byte_is_found_and_named(saved: Path) -> None:
    assert "verified" in fine("verify", saved)
    shard = saved / "1" / "step-00000020" / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    first = manifest.decode((shard.parent / "manifests/1.json").read_bytes(), "").shards[0].items[0]
    content[first.offset + first.length - 1] ^= 1
    shard.write_bytes(content)
    told = ckpt("verify", saved)
    assert told.code == 2
    assert "__1_0.distcp" in told.err and "does not match its checksum" in told.err
    assert "verified" in fine("verify", f"{saved}@10")
    assert "checksum" in refused("export", saved, saved.parent / "broken.pt")
    assert not list(saved.parent.glob("*broken*")), "nothing half-written is left"


def test_since_when_a_step_is_verified_is_listed(saved: Path) -> None:
    fine("verify", f"{saved}@10")
    listed = {entry["step"]: entry for entry in json.loads(fine("ls", saved, "--json"))}
    at = datetime.fromisoformat(listed[10]["verified"])
    assert timedelta() < datetime.now(UTC) - at < timedelta(hours=1)
    assert listed[20]["verified"] is None
    row = next(line for line in fine("ls", saved).splitlines() if line.startswith("  10"))
    assert re.search(r"just now$|\d+ s ago$", row)
    reader = FileSystemReader(saved / "1/step-00000010")
    assert "model.rows" in reader.read_metadata().state_dict_metadata

    shard = saved / "1/step-00000010/__0_0.distcp"
    shard.write_bytes(bytes(len(shard.read_bytes())))
    assert ckpt("verify", f"{saved}@10").code == 2
    assert not any(entry["verified"] for entry in json.loads(fine("ls", saved, "--json")))


def test_a_store_that_takes_no_note_is_verified_with_a_warning(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageRefused("read only")

    monkeypatch.setattr(FolderStorage, "put", refuse)
    told = ckpt("verify", saved)
    assert told.code == 0 and "verified" in told.out
    assert told.err == "warning: the result could not be recorded for `ckpt ls`: read only\n"


def test_an_export_to_torch_is_the_state(saved: Path, tmp_path: Path) -> None:
    fine("export", saved, tmp_path / "all.pt")
    for mapped in (False, True):
        loaded = torch.load(tmp_path / "all.pt", weights_only=True, mmap=mapped)
        assert loaded.pop("epoch") == 7
        assert same(loaded, {"model": STATE["model"]}), "and nothing that is a single rank's"
    fine("export", saved, tmp_path / "model.pt", "--part", "model")
    assert same(torch.load(tmp_path / "model.pt", weights_only=True), STATE["model"])
    assert "add --force" in refused("export", saved, tmp_path / "model.pt")


def test_an_export_to_safetensors_is_the_model(saved: Path, tmp_path: Path) -> None:
    fine("export", saved, tmp_path / "one")
    assert same(read_safetensors(tmp_path / "one" / "model.safetensors"), STATE["model"])
    fine("export", saved, tmp_path / "many", "--max-shard-size", "100B")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    found: dict[str, torch.Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        held = read_safetensors(tmp_path / "many" / file)
        assert all(index["weight_map"][name] == file for name in held)
        found |= held
    assert same(found, STATE["model"]) and len(set(index["weight_map"].values())) > 1


def test_of_an_earlier_export_to_the_same_folder_nothing_stays(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    foreign = {"config.json", "model.safetensors.bak", "model-a.safetensors", "lora.safetensors"}
    sizes = ["1GB", "100B", "150B", "1GB"]
    for number, most in enumerate(sizes):
        fine("export", saved, out, "--max-shard-size", most, "--force")
        fine("export", saved, tmp_path / f"new-{number}", "--max-shard-size", most)
        written = {path.name for path in (tmp_path / f"new-{number}").iterdir()}
        assert {path.name for path in out.iterdir()} - foreign == written
        for name in foreign:
            (out / name).write_text("somebody's")
    assert all((out / name).read_text() == "somebody's" for name in foreign)


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("verify", []),
        ("export", ["all.pt"]),
        ("export", ["model.pt", "--part", "model"]),
        ("export", ["folder"]),
        ("export", ["folder", "--max-shard-size", "100B"]),
        ("import", ["new"]),
    ],
)
def test_the_bar_is_full_at_the_end(
    command: str, more: list[str], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: list[int] = []
    told: list[int] = []

    @contextmanager
    def progress(_: str, total: int) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield told.append

    source = saved
    if command == "import":
        source = tmp_path / "in.pt"
        torch.save(STATE, source)
    monkeypatch.setattr(commands, "progress", progress)
    places = [str(tmp_path / word) for word in more[:1]]
    fine(command, source, *places, *more[1:])
    assert totals == [sum(told)] and totals[0] > 0


class Unsteady(FolderStorage):
    """Every third call fails; a write has come through then."""

    calls = 0
    failed = 0

    def _struck(self) -> None:
        self.calls += 1
        if self.calls % 3 == 0:
            self.failed += 1
            raise StorageUnavailable("503 SlowDown")

    def get(self, key: str) -> Blob | None:
        self._struck()
        return super().get(key)

    def read(self, key: str, offset: int, target: memoryview) -> int:
        self._struck()
        return super().read(key, offset, target)

    def times(self, prefix: str = "") -> dict[str, float]:
        self._struck()
        return super().times(prefix)

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        super().put(key, data, progress)
        self._struck()

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        self._struck()
        return created

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        swapped = super().swap(key, data, etag)
        self._struck()
        return swapped


@pytest.fixture
def unsteady(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Unsteady]:
    """What is opened by unsteady://, a name below the test's folder."""
    opened: list[Unsteady] = []

    def open_unsteady(url: str) -> Unsteady:
        opened.append(Unsteady(tmp_path / url.removeprefix("unsteady://")))
        return opened[-1]

    monkeypatch.setattr("spotelastic.client.storage.open_storage", open_unsteady)
    soon = OutagePatience(within=PATIENT, first=0.001, most=0.002)
    monkeypatch.setattr("spotelastic.client.storage.PATIENCE", soon)
    return opened


def test_a_request_that_fails_is_made_again(
    saved: Path, tmp_path: Path, unsteady: list[Unsteady]
) -> None:
    url = f"unsteady://{saved.name}"
    steps = json.loads(fine("ls", url, "--json"))
    assert [step["state"] for step in steps] == ["committed", "committed", "incomplete"]
    assert "verified" in fine("verify", f"{url}@10")
    fine("export", url, tmp_path / "all.pt")
    fine("export", url, tmp_path / "folder")
    assert same(read_safetensors(tmp_path / "folder" / "model.safetensors"), STATE["model"])
    fine("import", tmp_path / "all.pt", "unsteady://new", "--step", "40")
    fine("verify", "unsteady://new@40")
    for command in ("pin", "unpin"):
        fine(command, f"{url}@10")
    assert len(unsteady) == 8 and all(storage.failed for storage in unsteady[:5])


def test_a_store_that_stays_away_ends_the_command_with_its_words(
    saved: Path, unsteady: list[Unsteady], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailable("503 SlowDown")

    monkeypatch.setattr(Unsteady, "times", away)
    # Worth a word from the first failure on: there may be no time for a second one.
    at_once = OutagePatience(within=0.01, first=0.002, most=0.002, worth_a_word=0.002)
    monkeypatch.setattr("spotelastic.client.storage.PATIENCE", at_once)
    done = ckpt("ls", f"unsteady://{saved.name}")
    assert done.code != 0 and not done.out
    first, last = done.err.splitlines()
    assert first == "this command is waiting for the object store: 503 SlowDown"
    assert "503 SlowDown" in last


class Held(FolderStorage):
    """Once it is said which, one read fails; all others wait until that is known."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fails = ("", 0)
        self.begun = self.ended = 0
        self.known = threading.Event()

    def read(self, key: str, offset: int, target: memoryview) -> int:
        if not self.fails[0]:
            return super().read(key, offset, target)
        self.begun += 1
        if (key, offset) == self.fails:
            raise StorageUnavailable("no answer")
        self.known.wait(PATIENT)
        self.ended += 1
        return super().read(key, offset, target)


@pytest.mark.parametrize("what", ["verify", "export"])
def test_after_an_error_nothing_more_is_read(what: str, saved: Path, tmp_path: Path) -> None:
    storage = Held(saved)
    there = Catalog(storage, at_once=2)
    checkpoint = there.find(20)
    tensors = {t.name: t for t in checkpoint.tensors() if t.dtype != "value"}
    first = next(p for p in checkpoint.items if what == "verify" or p.item.is_tensor)
    storage.fails = first.key, first.item.offset
    with pytest.raises(StorageUnavailable, match="no answer"):
        if what == "verify":
            there.verify(checkpoint, unseen)
        else:
            files = safetensors_export.plan(tensors, 1 << 20)
            safetensors_export.export(there, checkpoint, files, tmp_path / "out", unseen)
    assert storage.ended == 0, "nor waited for"
    storage.known.set()
    assert storage.begun <= 3 < len(tensors)


def test_foreign_files_that_resemble_a_step_are_none(saved: Path) -> None:
    for name in ("1/step-5/x", "01/step-00000010/x", "1/step-000000010/__0_0.distcp"):
        (saved / name).parent.mkdir(parents=True)
        (saved / name).write_text("somebody's")
    assert [entry["step"] for entry in json.loads(fine("ls", saved, "--json"))] == [10, 20, 30]
    assert "model.rows" in fine("inspect", f"{saved}@10", "--json")
    assert "step 5 is not committed (committed: 10, 20)" in refused("inspect", f"{saved}@5")


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_folder_that_is_named_by_url_is_looked_for_too(
    scheme: str, saved: Path, tmp_path: Path
) -> None:
    assert "typo: no such folder" in refused("ls", f"{scheme}://{tmp_path}/typo")
    assert not (tmp_path / "typo").exists()
    assert json.loads(fine("ls", f"{scheme}://{saved}", "--json"))


def test_an_import_is_what_was_exported(saved: Path, tmp_path: Path) -> None:
    file, place = tmp_path / "all.pt", tmp_path / "new"
    fine("export", saved, file)
    fine("import", file, place, "--step", "40")
    fine("verify", place)
    fine("export", f"{place}@40", tmp_path / "again.pt")
    assert same(torch.load(tmp_path / "again.pt"), torch.load(file))
    assert Commits(FolderStorage(place), "whoever comes first").claim().commit == Commit(1, 40)
    assert "already" in refused("import", file, place)


def test_a_file_that_would_run_code_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "evil.pt"
    file.write_bytes(pickle.dumps({"x": pytest.fail}))
    assert "safe to load" in refused("import", file, tmp_path / "new")
    assert not (tmp_path / "new" / "LATEST").exists()


def test_a_pinned_step_is_shown_and_only_removed_when_unpinned(saved: Path) -> None:
    assert "pinned" in fine("pin", f"{saved}@10")
    listed = {entry["step"]: entry for entry in json.loads(fine("ls", saved, "--json"))}
    assert listed[10]["pinned"] and not listed[20]["pinned"]
    assert "verified" in fine("verify", f"{saved}@10")
    assert "is pinned" in refused("rm", f"{saved}@10")
    fine("unpin", f"{saved}@10")
    fine("rm", f"{saved}@10")
    assert [entry["step"] for entry in json.loads(fine("ls", saved, "--json"))] == [20, 30]
    assert "LATEST" in refused("rm", f"{saved}@20")
    assert "no step 10" in refused("rm", f"{saved}@10")
    assert "name a step, as in" in refused("rm", saved)


def test_what_is_not_there_is_named(saved: Path, tmp_path: Path) -> None:
    assert "step 30 is not committed (committed: 10, 20)" in refused("inspect", f"{saved}@30")
    assert "nowhere: no such folder\n" in refused("ls", tmp_path / "nowhere")
    assert "nowhere: no such folder" in refused("ls", "nowhere")
    assert "after the @" in refused("inspect", f"{saved}@last")
    assert "has no committed checkpoint" in refused("verify", tmp_path)
    assert "--part optimizer" in refused("export", saved, tmp_path / "o", "--part", "optimizer")
    assert "expected a size" in refused("export", saved, tmp_path / "o", "--max-shard-size", "much")
    assert "no such file" in refused("import", tmp_path / "no.pt", tmp_path / "new")
