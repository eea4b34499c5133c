"""Opens the store that a URL names; adapters are imported only when they are needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.port import Storage

_GOOGLE_OR_AZURE = ("gs://", "gcs://", "az://", "abfs://", "abfss://")


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """`s3://bucket/prefix`, `gs://`, `az://`, any other URL that fsspec can open, `file:///folder`
    or a plain path. `options` are what fsspec takes for that URL; with any, fsspec opens it.

    Raises `StorageRefused`, or `StorageUnavailable` where the store has to be asked first.
    """
    url = _checked(url)
    folder = folder_of(url)
    if folder is not None:
        from spotelastic_checkpoints.storage.folder import FolderStorage

        if unknown := sorted(set(options or {}) - {"auto_mkdir"}):
            raise StorageRefused(f"{url}: a folder has no option {unknown[0]}")
        return FolderStorage(folder)
    if url.startswith("s3://"):
        return _open_s3(url, options)
    if url.startswith(_GOOGLE_OR_AZURE) and not options:
        return _open_google_or_azure(url)
    if "::" in url:
        raise StorageRefused(f"{url}: name the store itself: what lies between would go stale")
    from spotelastic_checkpoints.storage.filesystems import FsspecStorage

    return FsspecStorage(url, options)


def folder_of(url: str) -> Path | None:
    """The folder that is named, be it there or not; None for any other store.

    Opening a folder makes it: whoever only reads looks first whether it is there.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() not in ("file", "local"):
        return None
    return Path(rest if separator else url).expanduser().absolute()


def _checked(url: str) -> str:
    """With its scheme in small letters. Raises `StorageRefused` for names that no store keeps as
    they are."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in url):
        raise StorageRefused(f"{url!r}: there is a control character in it")
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
            raise StorageRefused(f"{url}: an empty name stands between two slashes")
    return url


def _open_s3(url: str, options: Mapping[str, Any] | None) -> Storage:
    """obstore has no such options, and s3fs is what they are made for."""
    if not options:
        try:
            from spotelastic_checkpoints.storage.s3.s3_storage import S3Storage
        except ImportError:
            pass
        else:
            return S3Storage(url)
    try:
        from spotelastic_checkpoints.storage.s3.s3fs_storage import S3fsStorage
    except ImportError as error:
        raise StorageRefused(f"{url} needs a package: pip install obstore") from error
    return S3fsStorage(url, options)


def _open_google_or_azure(url: str) -> Storage:
    try:
        from spotelastic_checkpoints.storage.google_azure import open_google_or_azure
    except ImportError as error:
        raise StorageRefused(f"{url} needs a package: pip install obstore") from error
    return open_google_or_azure(url)
