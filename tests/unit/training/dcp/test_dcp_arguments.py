"""CheckpointWriter and CheckpointReader take what the stock ones take, and mean it."""

import inspect
from email.message import Message
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from spotelastic_checkpoints.errors import StorageRefused
from support.saving.fixed_answers import answering
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.filesystem import SerializationFormat

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.dcp.reader import open_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        (FileSystemWriter, se.dcp.CheckpointWriter),
        (FsspecWriter, se.dcp.CheckpointWriter),
        (FileSystemReader, se.dcp.CheckpointReader),
        (FsspecReader, se.dcp.CheckpointReader),
    ],
)
def test_every_argument_of_the_stock_ones_is_taken(stock: type, ours: type, tmp_path: Path) -> None:
    given = {
        parameter.name: parameter.default
        for parameter in inspect.signature(stock).parameters.values()
        if parameter.default is not parameter.empty
    }
    assert given or stock is FsspecReader
    ours(tmp_path, **given)
    in_order = [p.name for p in inspect.signature(stock).parameters.values()]
    if stock.__name__.startswith("FileSystem"):
        assert list(inspect.signature(ours).parameters)[: len(in_order)] == in_order


class Locked(MemoryFileSystem):
    """Opens with the right token only."""

    protocol = "locked"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, token: str = "") -> None:
        if token != "right":
            raise PermissionError("a token is needed")
        super().__init__()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("locked://").strip("/")


fsspec.register_implementation("locked", Locked)


def test_storage_options_hold_for_every_path_of_a_writer_and_a_reader() -> None:
    state = {"weight": torch.arange(5.0)}
    writer = se.dcp.CheckpointWriter("locked://run/1", token="right")
    reader = se.dcp.CheckpointReader("locked://run/1", token="right")
    for path in ("locked://run/1", "locked://run/2"):
        dcp.save(state, storage_writer=writer, checkpoint_id=path, no_dist=True)
        found = {"weight": torch.zeros(5)}
        dcp.load(found, storage_reader=reader, checkpoint_id=path, no_dist=True)
        assert found["weight"].equal(state["weight"])
    with pytest.raises(UsageError, match="a token is needed"):
        se.dcp.CheckpointReader("locked://run/1").read_metadata()


@pytest.mark.parametrize("anon", [True, False])
def test_options_of_s3_go_to_s3fs(anon: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    heard: list[tuple[str, Message]] = []
    with answering(403, "AccessDenied", heard) as endpoint:
        storage = open_checkpoint("s3://bucket/1", {"anon": anon, "endpoint_url": endpoint})
        with pytest.raises(StorageRefused):
            storage.get("key")
    assert heard and all(("Authorization" in headers) != anon for _, headers in heard)
    with pytest.raises(UsageError, match="s3fs has no option anonymous"):
        open_checkpoint("s3://bucket/1", {"anonymous": True})


def test_what_would_be_ignored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a folder has no option endpoint_url"):
        se.dcp.CheckpointReader(tmp_path, endpoint_url="http://here").read_metadata()
    with pytest.raises(UsageError, match="extensions"):
        se.dcp.CheckpointWriter(tmp_path, _extensions=[object()])
    with pytest.raises(UsageError, match="safetensors"):
        se.dcp.CheckpointWriter(tmp_path, serialization_format=SerializationFormat.SAFETENSORS)


def test_each_load_has_an_id(tmp_path: Path) -> None:
    dcp.save({"x": torch.ones(1)}, storage_writer=se.dcp.CheckpointWriter(tmp_path), no_dist=True)
    reader = se.dcp.CheckpointReader(tmp_path)
    ids = []
    for _ in range(2):
        reader.reset()
        found = reader.read_metadata().storage_meta
        assert found is not None
        ids.append(found.load_id)
    assert all(ids) and len(set(ids)) == 2
