"""Opens the store that a URL names; adapters are imported only when they are needed."""

from pathlib import Path

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.port import Storage

BY_FSSPEC = ("gs", "gcs", "az", "abfs", "abfss", "memory")


def open_storage(url: str) -> Storage:
    """`s3://bucket/prefix`, `gs://`, `az://`, `memory://`, `file:///folder` or a plain path."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        from spotelastic_checkpoints.storage.folder import FolderStorage

        return FolderStorage(Path(rest if separator else url).expanduser().absolute())
    if scheme == "s3":
        return _open_s3(url)
    if scheme in BY_FSSPEC:
        from spotelastic_checkpoints.storage.filesystems import FsspecStorage

        return FsspecStorage(url)
    raise StorageRefused(
        f"{url}: checkpoints go to s3://bucket/prefix, gs://, az:// or to a folder"
    )


def _open_s3(url: str) -> Storage:
    try:
        from spotelastic_checkpoints.storage.s3 import S3Storage
    except ImportError:
        try:
            from spotelastic_checkpoints.storage.s3fs_adapter import S3fsStorage
        except ImportError as error:
            raise StorageRefused(f"{url} needs a package: pip install obstore") from error
        return S3fsStorage(url)
    return S3Storage(url)
