"""The objects of a cluster as ConfigMaps: what `up`, the controller and the commands exchange.

An object is compressed. A larger one lies in several ConfigMaps: first its parts are written, under
names that no reader knows yet, then the one that names them. So a reader has the old object or the
new one, never a mixture.
"""

import base64
import gzip
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting, Missing
from spotelastic.kubernetes.provider.kube_names import OBJECT, KubeNames

PART_BYTES = 700_000
"""Most bytes of a part: as text it is below the 1 MiB of a ConfigMap."""
MOST_PARTS = 16
HEAD, BODY = "object", "object-part"
KEY = "data"
PARTS = "spotelastic/parts"
"""Annotation with the names of the parts, separated by spaces."""
TRIES = 5
"""Reads of an object whose parts are replaced meanwhile."""


@dataclass(frozen=True, slots=True)
class ConfigMapObjects(ClusterBucket):
    """The objects of one cluster."""

    api: KubeApi
    cluster: str

    def url(self, name: str) -> str:
        """Return how people are told of the object."""
        return f"configmap://{self.api.namespace}/{self.cluster}/{name}"

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return an object and its version."""
        for _ in range(TRIES):
            head = self._head(name)
            if head is None:
                return None
            data = self._joined(head)
            if data is not None:
                return gzip.decompress(data), str(head["metadata"]["resourceVersion"])
        raise Unavailable(f"cannot read {self.url(name)}: it keeps changing")

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        """Write an object."""
        content = data if isinstance(data, bytes) else data.read()
        made = self._written(name, content)
        before = self._head(name)
        try:
            if before is None:
                self.api.create(made)
            else:
                self.api.patch("ConfigMap", made["metadata"]["name"], _changed(made))
        except (Conflicting, Missing) as error:  # another writer was faster: the last one counts
            self._drop(_parts(made))
            raise Unavailable(f"{self.url(name)} was written by two at once") from error
        self._drop(_parts(before))

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; return False if it exists."""
        made = self._written(name, data)
        try:
            self.api.create(made)
        except Conflicting:
            self._drop(_parts(made))
            return False
        return True

    def replace(self, name: str, data: bytes, version: str) -> bool:
        """Write an object that has this version; return False if it has another, or is gone."""
        before = self._head(name)
        if before is None or before["metadata"]["resourceVersion"] != version:
            return False
        made = self._written(name, data)
        made["metadata"]["resourceVersion"] = version
        try:
            self.api.replace(made)
        except (Conflicting, Missing):
            self._drop(_parts(made))
            return False
        self._drop(_parts(before))
        return True

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all objects with this prefix, in order."""
        heads = self.api.found("ConfigMap", KubeNames(self.cluster).labels(HEAD))
        found = (str(each["metadata"]["annotations"][OBJECT]) for each in heads)
        return tuple(sorted(name for name in found if name.startswith(prefix)))

    def has(self, name: str) -> bool:
        """Whether the object exists."""
        return self._head(name) is not None

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is not an error."""
        head = self._head(name)
        if head is not None:
            self.api.delete("ConfigMap", head["metadata"]["name"])
            self._drop(_parts(head))

    def _head(self, name: str) -> Manifest | None:
        return self.api.get("ConfigMap", KubeNames(self.cluster).object(name))

    def _joined(self, head: Manifest) -> bytes | None:
        """Return the compressed content; None if a part was deleted since the head was read."""
        names = _parts(head)
        if not names:
            return content_of(head)
        found = []
        for each in names:
            part = self.api.get("ConfigMap", each)
            if part is None:
                return None
            found.append(content_of(part))
        return b"".join(found)

    def _written(self, name: str, data: bytes) -> Manifest:
        """Write the parts of an object, if it needs several. Returns its head."""
        its, packed = KubeNames(self.cluster), gzip.compress(data, 6, mtime=0)
        head = its.object(name)
        if len(packed) <= PART_BYTES:
            return config_map(head, its.labels(HEAD), {OBJECT: name}, packed)
        pieces = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
        if len(pieces) > MOST_PARTS:
            raise EnvironmentFailure(
                f"{self.url(name)} would have {len(packed) / 2**20:.1f} MiB compressed: ConfigMaps "
                f"are to hold at most {MOST_PARTS * PART_BYTES / 2**20:.0f} MiB of one object"
            )
        mark = uuid.uuid4().hex[:10]
        names = [f"{head}.{mark}.{number}" for number in range(len(pieces))]
        for each, piece in zip(names, pieces, strict=True):
            self.api.create(config_map(each, its.labels(BODY), {OBJECT: name}, piece))
        told = {OBJECT: name, PARTS: " ".join(names)}
        return config_map(head, its.labels(HEAD), told, b"")

    def _drop(self, parts: tuple[str, ...]) -> None:
        for each in parts:
            self.api.delete("ConfigMap", each)


def config_map(
    name: str, labels: Mapping[str, str], annotations: Mapping[str, str], data: bytes
) -> Manifest:
    """Return the ConfigMap that holds some bytes."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": dict(labels), "annotations": dict(annotations)},
        "binaryData": {KEY: base64.b64encode(data).decode()},
    }


def _changed(made: Manifest) -> dict[str, Any]:
    """Return the patch that gives a head this content."""
    annotations = {PARTS: None, **made["metadata"]["annotations"]}
    return {"metadata": {"annotations": annotations}, "binaryData": made["binaryData"]}


def content_of(found: Manifest) -> bytes:
    """Return the bytes that a ConfigMap holds."""
    return base64.b64decode(found.get("binaryData", {}).get(KEY, ""))


def _parts(head: Manifest | None) -> tuple[str, ...]:
    annotations = {} if head is None else head["metadata"].get("annotations", {})
    return tuple(annotations.get(PARTS, "").split())
