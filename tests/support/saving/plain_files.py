"""A plain fsspec file system: folders, writes in place, no conditional writes."""

from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem


class PlainFileSystem(LocalFileSystem):
    protocol = "plain"
    cachable = False
    pipe_file = AbstractFileSystem.pipe_file
    cat_file = AbstractFileSystem.cat_file

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return super()._strip_protocol(str(path).removeprefix("plain://"))


fsspec.register_implementation("plain", PlainFileSystem)
