"""Builds a wheel of the running spotelastic, so that instances run what the caller runs.

It is made from the installed files, of a checkout or a wheel, without a build tool. The same files
give the same bytes on every system, and the SHA-256 is its name: what nodes have installed of it is
kept under that name, also for the `up` of another machine. So nothing is compressed, which each
zlib does in its own way.
"""

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from spotelastic import __version__
from spotelastic.aws.artifacts.system_files import left_by_system
from spotelastic.aws.base.infra_files import infra
from spotelastic.errors import EnvironmentFailure

NAME = "spotelastic"
PACKAGES = (NAME, "spotelastic_checkpoints")
_INFO = f"{NAME}-{__version__}.dist-info"
_KIND = "Wheel-Version: 1.0\nGenerator: spotelastic\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A built wheel."""

    sha256: str
    data: bytes

    @property
    def file(self) -> str:
        """The file name that pip expects."""
        return f"{NAME}-{__version__}-py3-none-any.whl"


@cache
def build() -> Wheel:
    """Build the wheel, once per process.

    Raises `EnvironmentFailure` if the installation lacks metadata.
    """
    files = dict(sorted(_files()))
    files |= {f"{_INFO}/{name}": data for name, data in _description().items()}
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    record = f"{_INFO}/RECORD"
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)  # dated 1980: nothing differs between two machines
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    data = raw.getvalue()
    return Wheel(hashlib.sha256(data).hexdigest(), data)


def _files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and not left_by_system(path):
                yield f"{package}/{path.relative_to(folder).as_posix()}", path.read_bytes()
    for name in infra_names():
        yield f"{NAME}/_infra/{name}", infra(name).read_bytes()


def infra_names() -> list[str]:
    """Return the names of all files of `infra/`, as `infra` takes them, in order."""
    files = [path for path in infra("").rglob("*") if path.is_file() and not left_by_system(path)]
    return sorted(path.relative_to(infra("")).as_posix() for path in files)


def _description() -> dict[str, bytes]:
    told = distribution(NAME)
    if told.version != __version__:
        raise EnvironmentFailure(
            f"{NAME} was installed as version {told.version}, but its code is {__version__}: "
            "install it again with pip"
        )
    texts = {name: told.read_text(name) for name in ("METADATA", "entry_points.txt")}
    for name, text in texts.items():
        if text is None:
            raise EnvironmentFailure(
                f"this installation of {NAME} has no {name}: install it again with pip"
            )
    return {name: text.encode() for name, text in (texts | {"WHEEL": _KIND}).items() if text}


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
