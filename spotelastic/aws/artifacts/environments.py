"""A job's environment on a node: fetched from the bucket, or built here and put there.

For each environment (its key, Python, machine) the bucket holds at most

    environments/<tag>.tar.gz     what was built, complete once it is there
    environments/<tag>.building   who builds it, renewed every few seconds
    environments/<tag>.failed     why it cannot be built

The first node that needs it takes `building` by a conditional write; the others wait. A builder
that does not renew for `STALE` seconds, by the watch of whoever waits, is replaced.

The environment comes first on its Python's path and what spotelastic itself runs on (with torch,
where the machine image has it) last: it brings what it lists, and need not bring the rest.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spotelastic.aws.artifacts import micromamba
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, SpotelasticError, told
from spotelastic.model.job import Environment

RENEW = 5.0
"""Seconds between two signs of life of a builder."""
STALE = 30.0
LOOK = 1.0
"""Seconds between two looks of a node that waits."""
BUILD_WITHIN = 3600.0
TOLD_LINES = 20
_HOME = "built-at"
"""The last file to be written: the folder that the environment was built in. Scripts hold it."""
_OWN = "spotelastic.pth"

Say = Callable[[str], None]


class BuildFailed(EnvironmentFailure):
    """The environment cannot be made; another try would fail as well."""


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of one cluster, as one node uses them. `home` is where they are kept."""

    objects: BucketObjects
    home: Path
    node: str
    say: Say

    def ensure(self, wanted: Environment, code: Path) -> Path:
        """The Python of the environment, once it is there; `code` is the unpacked folder.

        Raises `BuildFailed` with the last lines of the tool that makes it.
        """
        tag = _tag(wanted)
        folder = self.home / tag
        if not (folder / _HOME).exists():
            self._obtain(wanted, tag, code, folder)
        return folder / "bin" / "python"

    def _obtain(self, wanted: Environment, tag: str, code: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a try that was killed
        folder.mkdir(parents=True)
        watched = _WatchedClaim()
        while True:
            if self.objects.has(f"environments/{tag}.tar.gz"):
                self._fetch(tag, folder)
                return
            if reason := self.objects.get(f"environments/{tag}.failed"):
                raise BuildFailed(reason.decode())
            claim = self.objects.get(f"environments/{tag}.building")
            if claim is None:
                if self.objects.create(f"environments/{tag}.building", self._sign(0)):
                    self._build_and_share(wanted, tag, code, folder)
                    return
            elif watched.stale(claim):
                self.say(f"the environment's builder is silent: {claim.decode()}")
                self.objects.delete(f"environments/{tag}.building")
            else:
                if watched.first:
                    self.say(f"waiting for {claim.decode().split()[0]} to build {wanted.file}")
                threading.Event().wait(LOOK)

    def _sign(self, count: int) -> bytes:
        return f"{self.node} {count}".encode()

    # -- build -----------------------------------------------------------------------------------

    def _build_and_share(self, wanted: Environment, tag: str, code: Path, folder: Path) -> None:
        began = steady()
        with self._renewing(tag):
            if self.objects.has(f"environments/{tag}.tar.gz"):  # built while this node looked
                self._fetch(tag, folder)
                return
            self.say(f"building the environment of {wanted.file}")
            try:
                build(wanted, code, folder)
                self._share(tag, folder)
            except BuildFailed as error:
                self.objects.put(f"environments/{tag}.failed", str(error).encode())
                raise
        self.say(f"the environment of {wanted.file} is built ({steady() - began:.0f} s)")

    def _share(self, tag: str, folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self.home) as place:
            packed = Path(place, "environment.tar.gz")
            with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
                tar.add(folder, arcname=".")
            self.objects.upload(f"environments/{tag}.tar.gz", packed)

    @contextmanager
    def _renewing(self, tag: str) -> Iterator[None]:
        over = threading.Event()

        def renew() -> None:
            count = 0
            while not over.wait(RENEW):
                count += 1
                try:
                    self.objects.put(f"environments/{tag}.building", self._sign(count))
                except Exception as error:
                    self.say(told(error))

        thread = threading.Thread(target=renew, name="environment", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.objects.delete(f"environments/{tag}.building")

    # -- fetch -----------------------------------------------------------------------------------

    def _fetch(self, tag: str, folder: Path) -> None:
        began = steady()
        with tempfile.TemporaryDirectory(dir=self.home) as place:
            packed = Path(place, "environment.tar.gz")
            self.objects.download(f"environments/{tag}.tar.gz", packed)
            try:
                with tarfile.open(packed, "r:gz") as tar:
                    tar.extractall(folder, filter="tar")
                relocate(folder)
            except (tarfile.TarError, OSError, EOFError) as error:
                raise EnvironmentFailure(f"cannot unpack the environment {tag}: {error}") from error
        self.say(f"the environment is fetched ({steady() - began:.0f} s)")


def forget_failures(objects: BucketObjects, wanted: Environment) -> None:
    """So that nodes try again what could not be built before."""
    for name in objects.names(f"environments/{wanted.key[:24]}"):
        if name.endswith(".failed"):
            objects.delete(name)


class _WatchedClaim:
    """A claim, as one that waits sees it: it is stale if it does not change for `STALE` seconds."""

    def __init__(self) -> None:
        self._claim = b""
        self._since = 0.0
        self.first = False

    def stale(self, claim: bytes) -> bool:
        self.first = not self._claim
        if claim != self._claim:
            self._claim, self._since = claim, steady()
        return steady() > self._since + STALE


def _tag(wanted: Environment) -> str:
    """What fits this environment and this machine."""
    version = "".join(platform.python_version_tuple()[:2])
    # Its interpreter is a link to this one, which is elsewhere in a container, or linked otherwise.
    base = hashlib.sha256(f"{sys.base_prefix} {platform.libc_ver()}".encode()).hexdigest()[:8]
    machine = sysconfig.get_platform().replace(".", "_")
    return f"{wanted.key[:24]}-py{version}-{machine}-{base}"


# -- how an environment is made ------------------------------------------------------------------


def build(wanted: Environment, code: Path, folder: Path) -> None:
    """Makes the environment in the empty `folder`. Raises `BuildFailed`."""
    file = code / wanted.file
    if not file.is_file():
        raise BuildFailed(
            f"{wanted.file} is not in the archive of the code: do not list it in an ignore file"
        )
    _MAKERS[wanted.kind](file, folder)
    _add_own_packages(folder)
    (folder / _HOME).write_text(str(folder))


def _by_pip(file: Path, folder: Path) -> None:
    _empty(folder)
    _add_own_packages(folder)  # pip leaves out what is there already, e.g. torch
    python = folder / "bin" / "python"
    _run(
        [sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "-r", file.name],
        file,
    )


def _by_uv(file: Path, folder: Path) -> None:
    _empty(folder)
    command = [_uv(file, folder), "sync", "--frozen", "--no-dev", "--no-install-project"]
    # Unless it is told, uv takes the Python that .python-version pins, in which spotelastic and the
    # image's torch cannot be loaded. Where the project takes no other, uv says so.
    command += ["--python", str(folder / "bin" / "python")]
    _run(command, file, UV_PROJECT_ENVIRONMENT=str(folder))


def _by_conda(file: Path, folder: Path) -> None:
    tool, env = _conda(file, folder)
    command = [tool, "create"] if tool.endswith("micromamba") else [tool, "env", "create"]
    folder.rmdir()
    _run([*command, "--yes", "--prefix", str(folder), "--file", file.name], file, **env)
    version = "{}.{}".format(*sys.version_info)
    if not (folder / "lib" / f"python{version}").is_dir():
        raise BuildFailed(
            f"{file.name} has no Python {version}, which spotelastic runs on there: "
            f"add python={version}"
        )


_MAKERS = {"pip": _by_pip, "uv": _by_uv, "conda": _by_conda}


def _empty(folder: Path) -> None:
    _run([sys.executable, "-P", "-m", "venv", "--without-pip", str(folder)], folder)


def _uv(file: Path, folder: Path) -> str:
    """The machine's uv, or one of our own."""
    if found := shutil.which("uv"):
        return found
    tools = folder.with_name("tools")
    _run([sys.executable, "-P", "-m", "pip", "install", "--target", str(tools), "uv"], file)
    return str(tools / "bin" / "uv")


def _conda(file: Path, folder: Path) -> tuple[str, Mapping[str, str]]:
    """The machine's conda, or a micromamba of our own; and the variables that it needs."""
    if found := next(filter(None, map(shutil.which, ("micromamba", "mamba", "conda"))), None):
        return found, {}
    tools = folder.with_name("tools")
    try:
        ours = micromamba.ensure(tools, micromamba.RELEASE)
    except SpotelasticError as error:  # Unavailable too: else each node would try until it is ended
        raise BuildFailed(
            f"{file.name} needs micromamba, as this machine has no conda: {error}; use a "
            "requirements.txt, or --image of one that has conda"
        ) from error
    return str(ours), {"MAMBA_ROOT_PREFIX": str(tools / "mamba")}


def _run(command: Sequence[str], file: Path, **env: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=file.parent,
            env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"} | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_WITHIN,
            check=False,
        )
    except OSError as error:
        raise BuildFailed(f"cannot run {command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{file.name} was not installed within {BUILD_WITHIN:.0f} s") from None
    if done.returncode:
        lines = done.stdout.decode(errors="replace").strip().splitlines()[-TOLD_LINES:]
        told = "\n".join(lines)
        raise BuildFailed(f"{file.name} cannot be installed:\n{told}")


def _add_own_packages(folder: Path) -> None:
    """Appends the places of this very installation to the environment's path."""
    places = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    lines = [f"import site; site.addsitedir({place!r})" for place in places]
    packages = next(iter(folder.glob("lib/python*/site-packages")))
    (packages / _OWN).write_text("\n".join(lines) + "\n")


_LONG = b"#!/bin/sh\n'''exec' "
"""What pip begins a script with whose interpreter has a long path."""


def relocate(folder: Path) -> None:
    """Makes an environment that was built elsewhere, and is now in `folder`, fit for that place.

    The interpreter finds its packages beside itself; only scripts name it by its path: in their
    first line, or in the second where it is too long for the first.
    """
    _add_own_packages(folder)
    built = (folder / _HOME).read_text().encode()
    for script in (folder / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        data = script.read_bytes()
        if data.startswith((b"#!" + built, _LONG + built)):
            script.write_bytes(data.replace(built, str(folder).encode(), 1))
    (folder / _HOME).write_text(str(folder))
