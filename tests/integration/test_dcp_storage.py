"""CheckpointWriter and CheckpointReader in the place of stock DCP's, in one process."""

import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.processes.patience import PATIENT
from torch import nn
from torch.distributed._shard.sharded_tensor import metadata as sharded_tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    TensorStorageMetadata,
)
from torch.serialization import _get_layout

import spotelastic as se
from spotelastic.errors import SpotelasticError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


def make(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    wide = torch.randn(6, 10)
    return {
        "model": nn.Linear(30, 20).state_dict(),
        "view": wide[:, 2:5],
        "half": torch.randn(7).to(torch.bfloat16),
        "eighth": torch.randn(9).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(float(seed)),
        "empty": torch.empty(0, 3),
        "step": seed,
        "nested": {"list": [1, torch.full((2,), float(seed))], "name": f"run {seed}"},
    }


def equal(left: Any, right: Any) -> bool:
    match left:
        case torch.Tensor():
            return left.dtype == right.dtype and left.float().equal(right.float())
        case dict():
            return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
        case list():
            return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def save(state: dict[str, Any], writer: Any) -> None:
    dcp.save(state, storage_writer=writer, no_dist=True)


def load(reader: Any) -> dict[str, Any]:
    state = make(99)
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


@pytest.mark.parametrize("options", [{}, {"single_file_per_rank": False, "thread_count": 7}])
def test_what_we_write_is_read_by_stock_readers_and_ours(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    save(make(1), se.dcp.CheckpointWriter(tmp_path / "saved", **options))
    for reader in FileSystemReader, FsspecReader, se.dcp.CheckpointReader:
        assert equal(load(reader(str(tmp_path / "saved"))), make(1))


def test_what_stock_writers_write_is_read_by_ours(tmp_path: Path) -> None:
    save(make(2), FileSystemWriter(tmp_path, thread_count=3))
    assert equal(load(se.dcp.CheckpointReader(tmp_path)), make(2))


def test_a_large_state_goes_to_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotelastic.training.dcp.writer.FILE", 4096)
    monkeypatch.setattr("spotelastic.training.dcp.reader.RANGE", 1000)
    monkeypatch.setattr("spotelastic.training.dcp.reader.BUDGET", 5000)
    state = {f"t{i}": torch.randn(200 * (i + 1)) for i in range(12)}
    save(state, se.dcp.CheckpointWriter(tmp_path))
    assert len(list(tmp_path.glob("__0_*.distcp"))) > 3
    for reader in FileSystemReader(tmp_path), se.dcp.CheckpointReader(tmp_path):
        other = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(other, storage_reader=reader, no_dist=True)
        assert equal(other, state)


class Staging(se.dcp.CheckpointWriter):
    """Notes where the copies of one tensor lie."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.copies = set[int]()

    def stage(self, state_dict: Any) -> Any:
        staged = super().stage(state_dict)
        self.copies.add(staged["model"]["weight"].data_ptr())
        return staged


def test_async_save_copies_before_it_returns_and_reuses_its_memory(
    tmp_path: Path, gloo: None
) -> None:
    writer = Staging(tmp_path / "1")
    for number in (1, 2, 3):
        state = make(number)
        folder = tmp_path / str(number)
        future = dcp.async_save(state, storage_writer=writer, checkpoint_id=folder)
        state["model"]["weight"].zero_()
        assert isinstance(future, Future)
        future.result()
        assert equal(load(FileSystemReader(folder)), make(number))
    assert len(writer.copies) == 1


def test_a_save_during_another_does_not_touch_its_copy(tmp_path: Path) -> None:
    writer = se.dcp.CheckpointWriter(tmp_path)
    first = writer.stage(make(1))
    second = writer.stage(make(2))
    assert equal(first, make(1))
    assert equal(second, make(2))


def test_a_writer_goes_to_another_process_without_its_memory(tmp_path: Path) -> None:
    writer = se.dcp.CheckpointWriter(tmp_path / "1", overwrite=False, thread_count=7)
    save(make(1), writer)
    writer.stage({"large": torch.ones(100_000)})
    packed = pickle.dumps(writer)
    assert len(packed) < 10_000
    other = pickle.loads(packed)
    with pytest.raises(CheckpointException, match="has a checkpoint already"):
        save(make(2), other)
    other.reset(tmp_path / "2")
    save(make(2), other)
    assert equal(load(FileSystemReader(tmp_path / "2")), make(2))
    assert writer.path == tmp_path / "1"
    assert equal(writer.stage(make(3)), make(3))


@pytest.mark.soak
def test_async_save_in_a_process_of_its_own(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.scripts.async_process", tmp_path],
        cwd=Path(__file__).parent.parent,
        check=True,
        timeout=2 * PATIENT,
    )
    for step in (1, 2):
        found: dict[str, Any] = {"weight": torch.zeros(1000), "step": 0}
        dcp.load(found, storage_reader=FileSystemReader(tmp_path / str(step)), no_dist=True)
        assert found["step"] == step
        assert found["weight"].equal(torch.full((1000,), float(step)))


def test_nothing_is_overwritten_unless_allowed(tmp_path: Path) -> None:
    save(make(1), se.dcp.CheckpointWriter(tmp_path))
    with pytest.raises(CheckpointException, match="has a checkpoint already"):
        save(make(2), se.dcp.CheckpointWriter(tmp_path, overwrite=False))
    assert equal(load(se.dcp.CheckpointReader(tmp_path)), make(1))
    save(make(2), se.dcp.CheckpointWriter(tmp_path))
    assert equal(load(se.dcp.CheckpointReader(tmp_path)), make(2))


class Unsaveable:
    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def test_a_save_that_fails_leaves_no_checkpoint(tmp_path: Path) -> None:
    save(make(1), se.dcp.CheckpointWriter(tmp_path))
    with pytest.raises(CheckpointException, match="not this one"):
        save({**make(2), "bad": Unsaveable()}, se.dcp.CheckpointWriter(tmp_path))
    with pytest.raises(CheckpointException, match="is not a checkpoint"):
        load(se.dcp.CheckpointReader(tmp_path))


def named(module: str, name: str, then: bytes = b"") -> bytes:
    """A pickle that begins with what the dotted name leads to, as protocol 4 has it."""
    return b"\x80\x04" + text(module) + text(name) + pickle.STACK_GLOBAL + then + pickle.STOP


def text(value: str) -> bytes:
    return pickle.SHORT_BINUNICODE + bytes([len(value)]) + value.encode()


def called(*arguments: str) -> bytes:
    return pickle.MARK + b"".join(map(text, arguments)) + pickle.TUPLE + pickle.REDUCE


PLANTING = (
    pickle.NONE
    + (pickle.EMPTY_DICT + text("planted") + pickle.NEWTRUE + pickle.SETITEM)
    + (pickle.TUPLE2 + pickle.BUILD)
)
"""Sets an attribute of what was named, in the way that is for slots and works for classes."""


DCP = "torch.distributed.checkpoint"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"garbage", "cannot be read"),
        (pickle.dumps({"a": 1}), "not a checkpoint's record: it contains a dict"),
        (b"cposix\nsystem\n(S'exit 1'\ntR.", "refers to posix.system, which does not belong in it"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "refers to builtins.eval"),
        (named(f"{DCP}.filesystem", "io.FileIO", called("victim", "w")), "refers to .*io.FileIO"),
        (
            named(
                f"{DCP}.metadata",
                "torch.cuda._memory_viz.subprocess.Popen",
                called("rm", "victim"),
            ),
            "refers to .*Popen, which does not belong in it",
        ),
        (
            named(f"{DCP}.metadata", "Metadata.__init__", PLANTING),
            "refers to .*Metadata.__init__",
        ),
        (named(f"{DCP}.filesystem", "FileSystemWriter"), "refers to .*FileSystemWriter"),
        (named("torch", "float32.__class__"), "refers to torch.float32.__class__"),
        (named(f"{DCP}.metadata", "Metadata", PLANTING), "it contains a type"),
        (named("pathlib", "Path", PLANTING), "it contains a type"),
        (
            named(
                f"{DCP}.metadata",
                "_MEM_FORMAT_ENCODING",
                pickle.BININT1 + b"\0" + pickle.TUPLE1 + pickle.REDUCE + PLANTING,
            ),
            "it contains a _Member",
        ),
        (
            named("torch.serialization", "_get_layout", PLANTING),
            "it contains a type",
        ),
    ],
)
def test_a_foreign_metadata_file_is_refused_and_runs_nothing(
    tmp_path: Path, content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("victim").write_text("kept")
    Path(".metadata").write_bytes(content)
    with pytest.raises(SpotelasticError, match=message):
        se.dcp.CheckpointReader(tmp_path).read_metadata()
    assert Path("victim").read_text() == "kept"
    for shared in Metadata, Metadata.__init__, Path, _MEM_FORMAT_ENCODING(0), _get_layout:
        assert not hasattr(shared, "planted")


def test_metadata_is_read_as_stock_reads_it(tmp_path: Path) -> None:
    state = {**make(1), "ordered": OrderedDict(a=1), "grad": torch.ones(2, requires_grad=True)}
    save(state, FileSystemWriter(tmp_path))
    stock, ours = FileSystemReader(tmp_path), se.dcp.CheckpointReader(tmp_path)
    wanted, found = stock.read_metadata(), ours.read_metadata()
    assert found.storage_meta is not None and wanted.storage_meta is not None
    found.storage_meta.load_id = wanted.storage_meta.load_id
    assert found == wanted


def test_metadata_of_torch_2_2_is_read(tmp_path: Path) -> None:
    """It had the properties of tensors in another module."""
    save(make(1), FileSystemWriter(tmp_path))
    file = tmp_path / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    for stored in metadata.state_dict_metadata.values():
        if isinstance(stored, TensorStorageMetadata):
            properties: Any = sharded_tensor.TensorProperties(**vars(stored.properties))
            stored.properties = properties
    file.write_bytes(pickle.dumps(metadata))
    assert b"MEM_FORMAT_ENCODING" in file.read_bytes() and b"_MEM_F" not in file.read_bytes()
    assert equal(load(se.dcp.CheckpointReader(tmp_path)), make(1))


def test_a_reader_of_nothing_says_so_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        se.dcp.CheckpointReader(tmp_path / "typo").read_metadata()
    with pytest.raises(UsageError, match="no such folder"):
        se.dcp.CheckpointReader(f"file://{tmp_path}/typo").read_metadata()
    assert not (tmp_path / "typo").exists()


def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    save(make(1), se.dcp.CheckpointWriter(tmp_path))
    shard = tmp_path / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointException, match="is shorter than its"):
        load(se.dcp.CheckpointReader(tmp_path))


def test_s3_takes_what_a_folder_takes(bucket: str) -> None:
    url = f"s3://{bucket}/runs/1"
    save(make(4), se.dcp.CheckpointWriter(url))
    assert equal(load(FsspecReader(url)), make(4))
    assert equal(load(se.dcp.CheckpointReader(url)), make(4))


@pytest.fixture
def gloo(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()
