"""Puts what instances install at boot into the cluster's bucket.

It also installs etcd on control nodes.

    boot/<digest>/spotelastic-<version>-py3-none-any.whl    spotelastic, as `up` runs it
    boot/current                                            the one in use: <digest>/<file>
    boot/<digest>/constraints.txt                           the caller's torch version
    boot/<digest>/control-<machine>.tar.gz                  what the first control node installed
    boot/etcd-v<version>-linux-amd64.tar.gz                 etcd's own release, for control nodes

`boot.sh` installs the wheel; `spotelastic boot` installs etcd on control nodes.
"""

import io
import os
import re
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from spotelastic import __version__
from spotelastic.aws.artifacts import downloads, wheel
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.errors import SpotelasticError, Unavailable, told

CURRENT = "boot/current"
_TORCH = re.compile(r"torch>=([\d.]+)")
"""The torch version that spotelastic requires, in its own metadata."""
PROGRAMS = ("etcd", "etcdutl")
"""The programs of an etcd release that are installed."""


@dataclass(frozen=True, slots=True)
class BootRelease:
    """An official release of etcd, for the architecture of control nodes."""

    version: str
    sha256: str
    site: str = "https://github.com/etcd-io/etcd/releases/download"

    @property
    def folder(self) -> str:
        """The name of the folder in the release's archive."""
        return f"etcd-v{self.version}-linux-amd64"

    @property
    def url(self) -> str:
        """Where the release is published."""
        return f"{self.site}/v{self.version}/{self.folder}.tar.gz"

    @property
    def object(self) -> str:
        """The name of the release's object in the bucket."""
        return f"boot/{self.folder}.tar.gz"


ETCD = BootRelease("3.5.21", "adddda4b06718e68671ffabff2f8cee48488ba61ad82900e639d108f2148501c")
"""The release of new clusters. Members need at least 3.5.6 (etcd issue 13766)."""
RELEASES = {ETCD.version: ETCD}


def ship(objects: ClusterBucket, etcd: BootRelease | None, say: Callable[[str], None]) -> None:
    """Upload what is not in the bucket yet. `etcd` None: the nodes have an etcd of their own."""
    built = wheel.build()
    name = f"{built.sha256[:16]}/{built.file}"
    if not objects.has(f"boot/{name}"):
        objects.put(f"boot/{name}", built.data)
    objects.create(f"boot/{built.sha256[:16]}/constraints.txt", constraints().encode())
    if objects.get(CURRENT) != name.encode():
        objects.put(CURRENT, name.encode())
    if etcd is None or objects.has(etcd.object):
        return
    say(f"etcd {etcd.version}: fetching it from {etcd.url.split('/')[2]}")
    try:
        objects.put(etcd.object, fetch(etcd))
    except Unavailable as error:
        say(f"{error}; each control node will try by itself")


def other_release(objects: ClusterBucket) -> str:
    """Which spotelastic nodes have been booting with, where this command ships another."""
    shipped = (objects.get(CURRENT) or b"").decode()
    built = wheel.build()
    if shipped in ("", f"{built.sha256[:16]}/{built.file}"):
        return ""
    version = shipped.rpartition("/")[2].removeprefix(f"{wheel.NAME}-").partition("-")[0]
    return f"another build of {version}" if version == __version__ else version


def keep(file: str, url: str) -> None:
    """Store what a node has installed for those that come later, unless another node has.

    `url` is that of the object, in the cluster's bucket. Ends the process where it cannot be
    stored. `install.sh` calls this.
    """
    bucket, cluster, name = url.removeprefix("s3://").split("/", 2)
    objects = BucketObjects(Aws(os.environ["AWS_DEFAULT_REGION"]), bucket, cluster)
    try:
        objects.create_from(name, Path(file))
    except SpotelasticError as error:
        sys.exit(told(error))


def install(objects: ClusterBucket, etcd: BootRelease, folder: Path) -> None:
    """Install etcd's programs into `folder`, from the bucket or else from their publisher."""
    if all((folder / program).exists() for program in PROGRAMS):
        return
    # List first: S3 may deny reading a missing object, while a listing shows that it is missing.
    data = objects.get(etcd.object) if etcd.object in objects.names(etcd.object) else None
    if data is None:
        data = fetch(etcd)
    downloads.checked(data, etcd.sha256, f"etcd {etcd.version}", objects.url(etcd.object))
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for program in PROGRAMS:
            member = archive.extractfile(f"{etcd.folder}/{program}")
            assert member is not None
            beside = folder / f".{program}"
            beside.write_bytes(member.read())
            beside.chmod(0o755)
            beside.rename(folder / program)


def constraints() -> str:
    """Return the pip constraint that gives all workers of a cluster the caller's torch.

    Empty if the caller has no torch, or one that pip could not install there (a nightly, a local
    build, too old): workers then get the newest.
    """
    try:
        found = version("torch").partition("+")[0]
    except PackageNotFoundError:
        return ""
    least = next(filter(None, map(_TORCH.match, requires("spotelastic") or ())))[1]
    released = re.fullmatch(r"[\d.]+", found) is not None
    return f"torch=={found}\n" if released and _numbers(found) >= _numbers(least) else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def fetch(etcd: BootRelease) -> bytes:
    """Download a release.

    Raises `Unavailable` if it cannot be had, `EnvironmentFailure` if its checksum differs.
    """
    return downloads.fetch(etcd.url, etcd.sha256, f"etcd {etcd.version}")
