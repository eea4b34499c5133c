"""`cluster.files()` and `cluster.fetch()` bring what the commands bring."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spotelastic_checkpoints.storage.open import open_storage
from support.saving.kept_files_run import Place

from spotelastic.client import FetchedFiles, ListedFile, kept_files
from spotelastic.client.cluster import Cluster
from spotelastic.errors import UsageError


def test_a_program_lists_and_fetches_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path)
    node = place.node("a")
    node.begin(0, place.claim())
    for path in ("out/best.pt", "out/deep/log"):
        place.write("a", path, path.encode())
    node.keep(0)
    target: Any = SimpleNamespace(storage=open_storage)  # the folder in place of a cloud's bucket
    record: Any = SimpleNamespace(name="train", spec=SimpleNamespace(storage=place.storage.url))
    cluster = Cluster(target, record)
    found = cluster.files()
    assert found == tuple(kept_files.listed(place.storage))
    assert [type(each) for each in found] == [ListedFile] * 2
    assert cluster.fetch("out/deep", to="some") == FetchedFiles(Path("some"), 1, 12)
    assert (tmp_path / "some/out/deep/log").read_bytes() == b"out/deep/log"
    assert cluster.fetch().files == 2
    assert (tmp_path / "train-files/out/best.pt").read_bytes() == b"out/best.pt"
    with pytest.raises(UsageError, match="other is not kept"):
        cluster.fetch("other")
