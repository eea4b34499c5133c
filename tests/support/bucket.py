"""A cluster's bucket objects, in memory."""

from typing import IO


class Bucket:
    """As much of `BucketObjects` as is needed."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def names(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.kept if name.startswith(prefix)))

    def get(self, name: str) -> bytes | None:
        return self.kept.get(name)

    def put(self, name: str, data: IO[bytes]) -> None:
        self.kept[name] = data.read()

    def delete(self, name: str) -> None:
        del self.kept[name]
