"""A commit is copied between buckets of two regions, however often that is cut off."""

from collections.abc import Iterator

import pytest
from spotelastic_checkpoints.commit.commit_protocol import folder
from spotelastic_checkpoints.types import Commit
from support.clusters.local_cloud import running_cloud

from spotelastic.aws.base import account
from spotelastic.aws.clusters import copying
from spotelastic.aws.clusters.copying import CommitFiles, DamagedSource
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.client.targets.local_target import LocalTarget

COMMIT = Commit(3, 40)
LARGE = bytes(range(256)) * (2 << 12)
BASE = f"{folder(COMMIT)}"
FILES = CommitFiles(
    COMMIT, {f"{BASE}/__0_0.distcp": len(LARGE), f"{BASE}/__0_1.distcp": 5}, (f"{BASE}/m/0.json",)
)
Buckets = tuple[BucketObjects, BucketObjects]


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalTarget, LocalTarget]]:
    with running_cloud(tmp_path_factory.mktemp("home")) as info:
        here, there = LocalTarget(info), LocalTarget(info, region="us-west-2")
        for target in (here, there):
            account.ensure_bucket(target.aws, target.bucket)
        yield here, there


@pytest.fixture
def buckets(regions: tuple[LocalTarget, LocalTarget]) -> Buckets:
    source, target = (BucketObjects(each.aws, each.bucket, "run") for each in regions)
    source.delete_all()
    target.delete_all()
    target.abort_uploads("")
    for name, data in zip(FILES.shards, (LARGE, b"small"), strict=True):
        source.put(f"checkpoints/{name}", data)
    for name in (*FILES.manifests, FILES.record):
        source.put(f"checkpoints/{name}", name.encode())
    return source, target


class Cut(Exception):
    """The mover was killed."""


def test_a_copy_that_is_cut_off_goes_on_where_it_was_and_counts_only_when_it_is_whole(
    buckets: Buckets,
) -> None:
    source, target = buckets

    def cut(nbytes: int) -> None:
        raise Cut

    with pytest.raises(Cut):
        copying.copy(source, target, FILES, cut)
    assert not copying.is_copied(target, COMMIT)
    done: list[int] = []
    copying.copy(source, target, FILES, done.append)
    assert copying.is_copied(target, COMMIT)
    assert sum(done) == FILES.nbytes
    for name in (*FILES.shards, *FILES.manifests, FILES.record):
        assert target.get(f"checkpoints/{name}") == source.get(f"checkpoints/{name}")
    uploads = target.aws.s3.list_multipart_uploads(Bucket=target.bucket)
    assert uploads.get("Uploads", []) == []
    copying.copy(source, target, FILES, done.append)  # once more
    copying.drop(target, COMMIT)
    assert target.names("checkpoints/") == ()


def test_a_damaged_checkpoint_is_not_copied(buckets: Buckets) -> None:
    source, target = buckets
    source.put(f"checkpoints/{BASE}/__0_1.distcp", b"shorter"[:3])
    with pytest.raises(DamagedSource, match="does not have the 5 bytes of its manifest"):
        copying.copy(source, target, FILES, lambda _: None)
    assert not copying.is_copied(target, COMMIT)


def test_what_the_script_has_kept_is_copied_pieces_and_indexes(buckets: Buckets) -> None:
    source, target = buckets
    names = ("files/index/0/3.json", "files/0/3/aa", "files/0/3/bb", "files/index/1/3.json")
    for name in names:
        source.put(f"checkpoints/{name}", name.encode())
    source.put("checkpoints/files/0/3/empty", b"")
    target.put(f"checkpoints/{names[0]}", b"of an earlier move")
    copying.copy_kept_files(source, target)
    assert set(target.names("checkpoints/")) == set(source.names("checkpoints/files/"))
    for name in names:
        assert target.get(f"checkpoints/{name}") == name.encode()
