"""Opens the store that a URL names; adapters are imported only when they are needed."""

from pathlib import Path

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.port import Storage


def open_storage(url: str) -> Storage:
    """`s3://bucket/prefix`, `file:///folder` or a plain path."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        from spotelastic_checkpoints.storage.folder import FolderStorage

        return FolderStorage(Path(rest if separator else url).expanduser().absolute())
    if scheme == "s3":
        try:
            from spotelastic_checkpoints.storage.s3 import S3Storage
        except ImportError as error:
            raise StorageRefused(f"{url} needs a package: pip install 's3fs>=2026'") from error

        return S3Storage(url)
    raise StorageRefused(f"{url}: checkpoints go to s3://bucket/prefix or to a folder")
