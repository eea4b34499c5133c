"""Objects of the local cloud as files: every key has a file of its own, and none is lost."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.local.base.kept_objects import SMALL, KeptBuckets, key_of, names, path_of

KEYS = st.lists(
    st.sampled_from(["a", "b", "", ".", "..", "%", "a%", "%-", "a%-", "é", ".writing", "L" * 450]),
    min_size=1,
    max_size=4,
).map("/".join)


@given(KEYS)
def test_a_path_tells_its_key(key: str) -> None:
    path = path_of(key)
    assert key_of(path) == key
    assert not path.is_absolute() and ".." not in path.parts
    assert all(len(os.fsencode(part)) < 255 for part in path.parts)


def test_names_of_checkpoints_are_paths_as_they_are() -> None:
    for key in ("train/checkpoints/LATEST", "train/checkpoints/1/step-00000020/__0_0.distcp"):
        assert str(path_of(key)) == key


@given(keys=st.lists(KEYS, unique=True, max_size=8), gone=st.integers(0, 255))
def test_what_is_put_and_not_removed_is_there_for_the_next_cloud(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], gone: int
) -> None:
    root = tmp_path_factory.mktemp("buckets")
    buckets = KeptBuckets(root)
    buckets.add("bucket")
    contents = {}
    for key in keys:
        contents[key] = buckets.write(key.encode())
        buckets.place("bucket", key, contents[key])
    for key, content in contents.items():
        content.seek(0)
        assert content.read() == key.encode(), "also where its file had to make room for a folder"
    left = [key for number, key in enumerate(keys) if not gone >> number & 1]
    for key in set(keys) - set(left):
        buckets.remove("bucket", key)
    found = {key: content.read() for key, content in KeptBuckets(root).objects("bucket")}
    assert found == {key: key.encode() for key in left}
    assert names(root) == ("bucket",)
    assert left or not list((root / "bucket").iterdir()), "no folder is left empty"


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1])
def test_a_file_that_has_been_replaced_is_not_read_for_the_one_before(
    tmp_path: Path, size: int
) -> None:
    buckets = KeptBuckets(tmp_path)
    buckets.add("bucket")
    old, new = buckets.write(b"o" * size), buckets.write(b"n" * size + b"ew")
    buckets.place("bucket", "key", old)
    ((_, loaded),) = buckets.objects("bucket")
    assert loaded.read() == b"o" * size
    buckets.place("bucket", "key", new)
    for before in (old, loaded):
        before.seek(0)
        if size <= SMALL:
            assert before.read() == b"o" * size, "who has asked gets what was there then"
        else:
            with pytest.raises(ValueError, match="has been replaced"):
                before.read()
    assert new.read(size) == b"n" * size and new.read() == b"ew"
    buckets.remove("bucket", "key")
    buckets.place("bucket", "key", buckets.write(b"again"))
    ((_, unread),) = buckets.objects("bucket")
    buckets.remove("bucket", "key")
    with pytest.raises(ValueError, match="has been replaced"):
        unread.read()


def test_what_was_not_written_to_its_end_is_no_object(tmp_path: Path) -> None:
    buckets = KeptBuckets(tmp_path)
    buckets.add("bucket")
    half = buckets.write(b"half")
    assert list(buckets.objects("bucket")) == []
    again = KeptBuckets(tmp_path)  # after a cloud that was killed here
    assert list(again.objects("bucket")) == [] and not half.path.exists()
    again.write(b"overtaken").close()
    assert list((tmp_path / ".writing").iterdir()) == []
