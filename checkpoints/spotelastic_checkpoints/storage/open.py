"""Opens the object store or folder that a storage URL names.

Adapters are imported only when they are needed, as their packages are large.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.object_store import Storage

_GOOGLE_OR_AZURE = ("gs://", "gcs://", "az://", "abfs://", "abfss://")


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Open the store or folder at a URL.

    It is `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///folder`, a plain path, or any other URL
    that fsspec can open. `options` are fsspec's storage options for the URL; with options, fsspec
    opens it. Raises `StorageRefused` for a URL that cannot work, and `StorageUnavailable` if the
    store does not answer.
    """
    url = _checked(url)
    folder = folder_of(url)
    if folder is not None:
        from spotelastic_checkpoints.storage.folder import FolderStorage

        if unknown := sorted(set(options or {}) - {"auto_mkdir"}):
            raise StorageRefused(f"{url}: a folder has no option {unknown[0]}")
        return FolderStorage(folder)
    if "::" in url:
        raise StorageRefused(f"{url}: a chained URL could return stale data: name the store itself")
    if url.startswith("s3://") and not options:
        from spotelastic_checkpoints.storage.s3.s3_storage import S3Storage

        return S3Storage(url)
    if url.startswith(_GOOGLE_OR_AZURE) and not options:
        from spotelastic_checkpoints.storage.google_azure import open_google_or_azure

        return open_google_or_azure(url)
    from spotelastic_checkpoints.storage.filesystems import FsspecStorage, S3fsStorage

    return S3fsStorage(url, options) if url.startswith("s3://") else FsspecStorage(url, options)


def folder_of(url: str) -> Path | None:
    """Return the folder that a URL names, existing or not; None for any other store.

    Opening a folder creates it, so a program that only reads checks first whether it exists.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() not in ("file", "local"):
        return None
    return Path(rest if separator else url).expanduser().absolute()


def _checked(url: str) -> str:
    """Return the URL with its scheme in small letters.

    Raises `StorageRefused` for names that stores do not keep as they are.
    """
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in url):
        raise StorageRefused(f"{url!r}: the URL holds a control character")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    url = f"{scheme.lower()}://{rest}"
    if folder_of(url) is None and "::" not in url:
        bucket, *parts = rest.rstrip("/").split("/")
        if scheme.lower() == "s3" and not bucket:
            raise StorageRefused(f"{url}: the bucket is missing, as in s3://bucket/prefix")
        if wrong := next((part for part in parts if part in ("", ".", "..")), None):
            raise StorageRefused(f"{url}: a store has no folder {wrong}: name the prefix itself")
        if "" in parts:
            raise StorageRefused(f"{url}: there is an empty name between two slashes")
    return url
