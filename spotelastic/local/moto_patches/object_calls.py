"""Patches moto's S3 to keep objects in files, which the next local cloud finds again."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket, FakeKey, S3Backend, s3_backends

from spotelastic.local.base.kept_objects import Content, KeptBuckets, names
from spotelastic.local.cloud import ACCOUNT, REGIONS
from spotelastic.local.moto_patches.patch import Patches

PARTITION = "aws"


def install(patches: Patches, buckets: KeptBuckets) -> None:
    """Patch the buckets of this account.

    What tests put into other accounts' buckets ends with the cloud.

    Of a versioned bucket only the newest versions are kept. Policies, tags and versioning are not:
    `up` sets them again.
    """
    _load(buckets)
    _install_content(patches, buckets)
    _install_changes(patches, buckets)
    # Nobody but its owner gets as far as a bucket. A condition that does not hold denies, in moto.
    patches.addition(FakeBucket, "get_permission", "moto misreads the conditions of a policy")(
        lambda *_: PermissionResult.NEUTRAL
    )


def _load(buckets: KeptBuckets) -> None:
    backend = s3_backends[ACCOUNT][PARTITION]
    for name in names(buckets.root):
        region = next((each for each in REGIONS if name.endswith(f"-{each}")), REGIONS[0])
        bucket = backend.create_bucket(name, region)
        for key, content in buckets.objects(name):
            found = FakeKey(key, b"", ACCOUNT, region, bucket_name=name, version_id="null")
            _hold(found, content)
            found.last_modified = datetime.fromtimestamp(content.written_at, UTC).replace(
                tzinfo=None
            )
            bucket.keys.setlist(key, [found])


def _hold(key: FakeKey, content: Content) -> None:
    key._value_buffer.close()
    key._value_buffer = content  # type: ignore[assignment]
    key.contentsize = content.size


def _install_content(patches: Patches, buckets: KeptBuckets) -> None:
    @patches.method(FakeKey, "__init__", "moto keeps what objects hold in memory")
    def init(
        original: Callable[..., Any], key: FakeKey, name: Any, value: Any, *args: Any, **kwargs: Any
    ) -> None:
        its = kwargs.get("account_id") == ACCOUNT and kwargs.get("bucket_name") is not None
        if not its or kwargs.get("is_versioned"):
            original(key, name, value, *args, **kwargs)
            return
        content = buckets.write(value)
        original(key, name, b"", *args, **kwargs)
        _hold(key, content)


def _install_changes(patches: Patches, buckets: KeptBuckets) -> None:
    reason = "moto's objects end with its process"

    @patches.method(S3Backend, "create_bucket", reason)
    def create_bucket(
        original: Callable[..., Any], backend: Any, bucket_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        made = original(backend, bucket_name, *args, **kwargs)
        if backend.account_id == ACCOUNT:
            buckets.add(bucket_name)
        return made

    @patches.method(S3Backend, "delete_bucket", reason)
    def delete_bucket(original: Callable[..., Any], backend: Any, bucket_name: str) -> Any:
        deleted = original(backend, bucket_name)
        if deleted is not None and backend.account_id == ACCOUNT:
            buckets.drop(bucket_name)
        return deleted

    @patches.method(S3Backend, "put_object", reason)
    def put_object(
        original: Callable[..., Any],
        backend: Any,
        bucket_name: str,
        key_name: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        key = original(backend, bucket_name, key_name, *args, **kwargs)
        if backend.account_id == ACCOUNT:
            _write_through(buckets, backend.get_bucket(bucket_name), key)
        return key

    @patches.method(S3Backend, "delete_object", reason)
    def delete_object(
        original: Callable[..., Any],
        backend: Any,
        bucket_name: str,
        key_name: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with buckets.lock:
            answer = original(backend, bucket_name, key_name, *args, **kwargs)
            if backend.account_id == ACCOUNT:
                newest = backend.get_bucket(bucket_name).keys.get(key_name)
                if isinstance(newest, FakeKey):
                    _write_through(buckets, backend.get_bucket(bucket_name), newest)
                else:
                    buckets.remove(bucket_name, key_name)
        return answer


def _write_through(buckets: KeptBuckets, bucket: FakeBucket, key: FakeKey) -> None:
    """Give the object its file, unless it has been replaced or deleted since."""
    content: Any = key._value_buffer
    if not isinstance(content, Content):
        content = buckets.write(key.value)
    with buckets.lock:
        if bucket.keys.get(key.name) is key:
            buckets.place(bucket.name, key.name, content)
        else:
            content.close()
