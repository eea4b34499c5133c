"""Provides a job's Python environment on a node.

It fetches the environment from the bucket, or builds and shares it.

For each environment (its key, Python version and machine type) the bucket holds at most

    environments/<tag>.tar.gz     the built environment; complete once it is there
    environments/<tag>.building   the node that builds it, renewed every few seconds
    environments/<tag>.failed     why it cannot be built

The first node that needs it takes `building` by a conditional write; the others wait. A builder
that does not renew for some seconds, by the waiting node's clock, is replaced.

On the Python path the environment comes first, and spotelastic's own packages last (with torch, if
the machine image has it). The environment provides what it lists and need not provide the rest.
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
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from spotelastic import protection
from spotelastic.aws.artifacts import micromamba
from spotelastic.aws.artifacts.build_secrets import build_variables, hiding
from spotelastic.aws.artifacts.micromamba import RELEASE, MicromambaRelease
from spotelastic.clock import steady
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.errors import EnvironmentFailure, SpotelasticError, told
from spotelastic.model.job import Environment

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
BUILD_WITHIN = 3600.0
"""Seconds that a build may take."""
TOLD_LINES = 20
"""Lines of the build tool's output in an error."""
_HOME = "built-at"
"""The last file to be written: the folder in which the environment was built, as scripts name it.
"""
_OWN = "spotelastic.pth"

Say = Callable[[str], None]


class BuildFailed(EnvironmentFailure):
    """The environment cannot be built; another try would fail as well."""


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of one cluster, as one node uses them, kept in `home`."""

    objects: ClusterBucket
    home: Path
    node: str
    say: Say
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the build has, and nothing else has."""
    renew: float = 5.0
    """Seconds between two signs of life of a builder."""
    stale: float = 30.0
    """Seconds without a sign of life after which a builder is replaced."""
    look: float = 1.0
    """Seconds between two looks of a node that waits."""
    micromamba: MicromambaRelease = RELEASE
    """What builds conda environments where the machine has no conda."""

    def ensure(self, wanted: Environment, code: Path) -> Path:
        """Return the Python of the environment, building or fetching the environment first.

        `code` is the unpacked folder.

        Raises `BuildFailed` with the last lines of the build tool.
        """
        tag = tag_of(wanted)
        folder = self.home / tag
        if not (folder / _HOME).exists():
            self._obtain(wanted, tag, code, folder)
        return folder / "bin" / "python"

    def _obtain(self, wanted: Environment, tag: str, code: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # left by a try that was killed
        folder.mkdir(parents=True)
        seen, since = b"", 0.0
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
                continue
            if claim != seen:
                if not seen:
                    self.say(f"waiting for {claim.decode().split()[0]} to build {wanted.file}")
                seen, since = claim, steady()
            elif steady() > since + self.stale:
                self.say(
                    f"the environment's builder does not respond, replacing it: {claim.decode()}"
                )
                self.objects.delete(f"environments/{tag}.building")
            threading.Event().wait(self.look)

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
                with build_variables(self.secrets) as env:
                    build(wanted, code, folder, self.micromamba, env)
                self._share(tag, folder)
            except BuildFailed as error:
                # What is stored and told is what others may read.
                why = hiding(self.secrets)(str(error)) if self.secrets else str(error)
                self.objects.put(f"environments/{tag}.failed", why.encode())
                raise BuildFailed(why) from None
        self.say(f"the environment of {wanted.file} is built ({steady() - began:.0f} s)")

    def _share(self, tag: str, folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self.home) as place:
            packed = Path(place, "environment.tar.gz")
            with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
                tar.add(folder, arcname=".")
            # What another node has stored meanwhile stays: no worker can replace it.
            self.objects.create_from(f"environments/{tag}.tar.gz", packed)

    @contextmanager
    def _renewing(self, tag: str) -> Iterator[None]:
        over = threading.Event()

        def renew() -> None:
            count = 0
            while not over.wait(self.renew):
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


def forget_failures(objects: ClusterBucket, wanted: Environment) -> None:
    """Delete records of failed builds, so that nodes try again."""
    for name in objects.names(f"environments/{wanted.key[:24]}"):
        if name.endswith(".failed"):
            objects.delete(name)


def tag_of(wanted: Environment) -> str:
    """Return the name of an environment that fits this machine."""
    version = "".join(platform.python_version_tuple()[:2])
    # Its interpreter is a link to this one, whose path or libc may differ in a container.
    base = hashlib.sha256(f"{sys.base_prefix} {platform.libc_ver()}".encode()).hexdigest()[:8]
    machine = sysconfig.get_platform().replace(".", "_")
    return f"{wanted.key[:24]}-py{version}-{machine}-{base}"


# -- how an environment is made ------------------------------------------------------------------


def build(
    wanted: Environment,
    code: Path,
    folder: Path,
    micromamba_release: MicromambaRelease = RELEASE,
    env: Mapping[str, str] = NO_VARIABLES,
) -> None:
    """Build the environment in the empty `folder`, with the variables `env`.

    Raises `BuildFailed`.
    """
    file = code / wanted.file
    if not file.is_file():
        raise BuildFailed(
            f"{wanted.file} is not in the archive of the code: do not list it in an ignore file"
        )
    match wanted.kind:
        case "pip":
            _by_pip(file, folder, env)
        case "uv":
            _by_uv(file, folder, env)
        case "conda":
            _by_conda(file, folder, micromamba_release, env)
    _add_own_packages(folder)
    (folder / _HOME).write_text(str(folder))


def _by_pip(file: Path, folder: Path, env: Mapping[str, str]) -> None:
    _empty(folder)
    _add_own_packages(folder)  # pip then skips what is installed already, e.g. torch
    python = folder / "bin" / "python"
    _run(
        [sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "-r", file.name],
        file,
        env,
    )


def _by_uv(file: Path, folder: Path, env: Mapping[str, str]) -> None:
    _empty(folder)
    command = [_uv(file, folder, env), "sync", "--frozen", "--no-dev", "--no-install-project"]
    # By default uv takes the Python that .python-version pins, in which spotelastic and the image's
    # torch cannot be loaded. If the project accepts no other Python, uv says so.
    command += ["--python", str(folder / "bin" / "python")]
    _run(command, file, {**env, "UV_PROJECT_ENVIRONMENT": str(folder)})


def _by_conda(file: Path, folder: Path, release: MicromambaRelease, env: Mapping[str, str]) -> None:
    tool, its = _conda(file, folder, release)
    command = [tool, "create"] if tool.endswith("micromamba") else [tool, "env", "create"]
    folder.rmdir()
    _run([*command, "--yes", "--prefix", str(folder), "--file", file.name], file, {**env, **its})
    version = "{}.{}".format(*sys.version_info)
    if not (folder / "lib" / f"python{version}").is_dir():
        raise BuildFailed(
            f"{file.name} has no Python {version}, which spotelastic runs on there: "
            f"add python={version}"
        )


def _empty(folder: Path) -> None:
    _run([sys.executable, "-P", "-m", "venv", "--without-pip", str(folder)], folder)


def _uv(file: Path, folder: Path, env: Mapping[str, str]) -> str:
    """Return the machine's uv, or install one."""
    if found := shutil.which("uv"):
        return found
    tools = folder.with_name("tools")
    _run([sys.executable, "-P", "-m", "pip", "install", "--target", str(tools), "uv"], file, env)
    return str(tools / "bin" / "uv")


def _conda(file: Path, folder: Path, release: MicromambaRelease) -> tuple[str, Mapping[str, str]]:
    """Return the machine's conda, or an installed micromamba, with the variables that it needs."""
    if found := next(filter(None, map(shutil.which, ("micromamba", "mamba", "conda"))), None):
        return found, {}
    tools = folder.with_name("tools")
    try:
        ours = micromamba.ensure(tools, release)
    except SpotelasticError as error:  # Unavailable too, else every node would retry without end
        raise BuildFailed(
            f"{file.name} needs micromamba, as this machine has no conda: {error}; use a "
            "requirements.txt, or --image of one that has conda"
        ) from error
    return str(ours), {"MAMBA_ROOT_PREFIX": str(tools / "mamba")}


def _run(command: Sequence[str], file: Path, env: Mapping[str, str] = NO_VARIABLES) -> None:
    try:
        done = subprocess.run(
            protection.without(command),
            cwd=file.parent,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **env},
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
        raise BuildFailed("\n".join([f"{file.name} cannot be installed:", *lines]))


def _add_own_packages(folder: Path) -> None:
    """Append the folders of this installation's packages to the environment's path."""
    places = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    lines = [f"import site; site.addsitedir({place!r})" for place in places]
    packages = next(iter(folder.glob("lib/python*/site-packages")))
    (packages / _OWN).write_text("\n".join(lines) + "\n")


_LONG = b"#!/bin/sh\n'''exec' "
"""How pip begins a script whose interpreter has a long path."""


def relocate(folder: Path) -> None:
    """Adapt an environment that was built elsewhere to its place in `folder`.

    The interpreter finds its packages beside itself. Only scripts name it by its path: in their
    first line, or in the second if it is too long for the first.
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
