"""A cluster's objects in memory."""

import threading
from dataclasses import dataclass, field
from typing import IO

from spotelastic.cloud.bucket import ClusterBucket


@dataclass(slots=True)
class MemoryBucket(ClusterBucket):
    """The objects of one cluster. Thread-safe."""

    cluster: str
    objects: dict[str, bytes] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def url(self, name: str) -> str:
        """Return the object's URL."""
        return f"memory://{self.cluster}/{name}"

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return an object and its version."""
        with self._lock:
            data = self.objects.get(name)
            return None if data is None else (data, self._version(name))

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        """Write an object."""
        content = data if isinstance(data, bytes) else data.read()
        with self._lock:
            self.objects[name] = content
            self._versions[name] = self._versions.get(name, 0) + 1

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; return False if it exists."""
        with self._lock:
            if name in self.objects:
                return False
            self.put(name, data)
            return True

    def replace(self, name: str, data: bytes, version: str) -> bool:
        """Write an object that has this version; return False if it has another, or is gone."""
        with self._lock:
            if name not in self.objects or self._version(name) != version:
                return False
            self.put(name, data)
            return True

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all objects with this prefix, in order."""
        with self._lock:
            return tuple(sorted(name for name in self.objects if name.startswith(prefix)))

    def has(self, name: str) -> bool:
        """Whether the object exists."""
        return name in self.objects

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is not an error."""
        with self._lock:
            self.objects.pop(name, None)

    def _version(self, name: str) -> str:
        return str(self._versions.get(name, 0))
