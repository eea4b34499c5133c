"""Starts, finds and stops the local cloud, and returns the settings by which boto3 uses it."""

import contextlib
import fcntl
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from ipaddress import IPv4Network
from pathlib import Path
from typing import IO

from spotelastic_checkpoints import isolated

from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError
from spotelastic.local.base import processes
from spotelastic.local.base.remains import Remains

MOTO = "5.2.5"
ACCOUNT = "123456789012"  # moto's
ADMINISTRATOR = "AKIALOCALCLOUD000000"
"""The access key of the account's administrator. Its secret is drawn when the cloud starts."""
REGIONS = ("us-east-1", "us-east-2", "us-west-2")
"""The regions that every local cloud has, its own first."""
BOOT = (sys.executable, "-m", "spotelastic", "boot")
PROGRAM = "SPOTELASTIC_LOCAL_PROGRAM"
"""Names a file that runs a cloud's process in place of spotelastic's: tests change the cloud so."""

_SHM_NEEDED = 256 * 2**20  # bytes
_DISK_NEEDED = 2**30


@dataclass(frozen=True, slots=True)
class CloudInfo:
    """A running local cloud."""

    endpoint: str
    """The value for AWS_ENDPOINT_URL."""
    pid: int
    folder: str
    net: str
    """The block of loopback addresses in which VPCs must be created."""
    region: str
    zones: tuple[str, ...]
    imds_port: int
    started: int = 0
    """The process's start time, by which it is told from a later one with the same pid."""
    secret: str = field(default="", repr=False)
    """The secret of the administrator's access key."""

    @property
    def id(self) -> str:
        """The cloud's id."""
        return Remains(self.folder, "").cloud

    def net_of(self, region: str) -> str:
        """Return the addresses for VPCs of a region.

        Networks of AWS's regions may overlap. Here all are on this machine's loopback interface.
        """
        lower, upper = IPv4Network(self.net).subnets()
        return str((lower, *upper.subnets(2))[REGIONS.index(region)])


class RunsAlready(UsageError):
    """A local cloud is already running; a user has one at a time."""


def start(
    *,
    detach: bool = True,
    user: socket.socket | None = None,
    timeout: float = 60.0,
    boot_command: Sequence[str] = BOOT,
) -> CloudInfo:
    """Start a cloud as a separate process, in its own session.

    Unless `detach`ed it ends, and cleans up, when its starter ends in any way. With a `user`, a
    connection for joining.py, it ends when it has no users any more. `boot_command` is what an
    instance runs.

    Raises `RunsAlready` if a cloud is running, `EnvironmentFailure` if the machine lacks something,
    and `Unavailable` if it is not ready after `timeout` seconds.
    """
    _check_machine()
    with alone():
        if running := find():
            raise RunsAlready(
                f"a local cloud is already running (pid {running.pid}, {running.endpoint}): "
                "use it, or end it with `spotelastic down`"
            )
        _close_to_others()
        remains = Remains(tempfile.mkdtemp(prefix="spotelastic-"), str(_record()))
        settings: dict[str, object] = {
            "remains": asdict(remains),
            "buckets": str(buckets()),
            "logs": str(logs()),
            "boot_command": list(boot_command),
        }
        try:
            return _launch(remains, settings, detach, user, timeout)
        except BaseException:
            remains.remove()
            raise


def find() -> CloudInfo | None:
    """Return the running cloud, or None. Remains of a cloud that was killed are removed.

    Only Linux has any.
    """
    if sys.platform != "linux":
        return None
    try:
        values = json.loads(_record().read_text())
        info = CloudInfo(**{**values, "zones": tuple(values["zones"])})
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentFailure(f"cannot read {_record()}: {error.strerror}") from error
    except (TypeError, ValueError, KeyError) as error:
        raise EnvironmentFailure(f"{_record()} is damaged ({error}): remove it") from error
    if processes.started_at(info.pid) == info.started:
        return info
    Remains(info.folder, str(_record())).remove()
    return None


def stop(info: CloudInfo, timeout: float = 45.0) -> None:
    """Shut all instances down, end the cloud, and remove everything they have on the machine."""
    with contextlib.suppress(ProcessLookupError):
        death = os.pidfd_open(info.pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if processes.started_at(info.pid) != info.started:
                    break
                signal.pidfd_send_signal(death, number)
                select.select([death], [], [], timeout)
        finally:
            os.close(death)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(info.pid, os.WNOHANG)
    Remains(info.folder, str(_record())).remove()


def environment(info: CloudInfo) -> dict[str, str]:
    """Return the environment variables by which boto3 uses the cloud."""
    return credentials(info.endpoint, info.region, info.secret)


def credentials(endpoint: str, region: str, secret: str) -> dict[str, str]:
    """Return the environment variables with endpoint, region and the administrator's keys."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ADMINISTRATOR,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": region,
        "AWS_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _launch(
    remains: Remains,
    settings: dict[str, object],
    detach: bool,
    user: socket.socket | None,
    timeout: float,
) -> CloudInfo:
    ready, announce = os.pipe()
    starter = [] if detach else [os.pidfd_open(os.getpid())]
    given = {"announce": [announce], "starter": starter, "user": [user.fileno()] if user else []}
    try:
        log = Path(remains.folder, "cloud.log")
        log.touch(mode=0o600)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_program(), json.dumps(settings | given)],
                env=isolated.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[number for numbers in given.values() for number in numbers],
                start_new_session=True,
            )
    finally:
        for descriptor in (announce, *starter):
            os.close(descriptor)
    try:
        info = _parse(_read_all(ready, timeout))
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(ready)
    process.returncode = 0  # the process outlives this object by design; `stop` reaps it
    return info


def _program() -> list[str]:
    """Return the command that runs a cloud's process.

    It runs spotelastic's, or a file that `PROGRAM` names, which may change how its cloud behaves.
    """
    if program := os.environ.get(PROGRAM):
        return [sys.executable, "-u", program]
    return isolated.command("spotelastic.local.__main__")


def _read_all(ready: int, timeout: float) -> str:
    text = b""
    while select.select([ready], [], [], timeout)[0]:
        if not (data := os.read(ready, 65536)):
            return text.decode()
        text += data
    raise Unavailable(f"the local cloud was not ready after {timeout:.0f} s")


def _parse(answer: str) -> CloudInfo:
    values = json.loads(answer) if answer else {}
    if "endpoint" in values:
        return CloudInfo(**{**values, "zones": tuple(values["zones"])})
    raise EnvironmentFailure(values.get("error", "the local cloud ended while it started"))


def home() -> Path:
    """Return spotelastic's folder in the user's home; it need not exist."""
    return Path(os.environ.get("SPOTELASTIC_HOME") or Path.home() / ".spotelastic").absolute()


def buckets() -> Path:
    """Return where the objects of its buckets are stored, also while no cloud runs."""
    return home() / "s3"


def logs() -> Path:
    """Return where the output of its workers is stored, also while no cloud runs."""
    return home() / "output"


def _close_to_others() -> None:
    """Let no other user of the machine into the folders of objects and output.

    A home that `SPOTELASTIC_HOME` names may hold more than this, and stays as it is.
    """
    own = Path.home() / ".spotelastic"
    for folder in (buckets(), logs(), *((own,) if home() == own else ())):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        except OSError as error:
            raise EnvironmentFailure(f"cannot write to {folder}: {error.strerror}") from error


def _record() -> Path:
    return home() / "local.json"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock under which a cloud is started, so that two starts do not make two clouds."""
    with _held("local.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def making(waits: Callable[[], None]) -> Iterator[None]:
    """Hold the lock under which a cluster is created.

    All clusters of this machine share its loopback interface, and two might choose the same
    addresses. `waits` is called if another process holds the lock.
    """
    with _held("making.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _held(name: str) -> Iterator[IO[str]]:
    path = _record().with_name(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise EnvironmentFailure(f"cannot write to {path.parent}: {error.strerror}") from error
    with lock:
        yield lock


def _check_machine() -> None:
    if sys.platform != "linux":
        raise EnvironmentFailure("the local cloud needs Linux: instances are Linux processes")
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise EnvironmentFailure("the local cloud needs moto: pip install 'spotelastic[all]'")
    if (found := version("moto")) != MOTO:
        raise EnvironmentFailure(
            f"the local cloud needs moto {MOTO}, found {found}: pip install 'spotelastic[all]'"
        )
    kept = next(str(folder) for folder in (home(), *home().parents) if folder.exists())
    needs = ("/dev/shm", _SHM_NEEDED), (tempfile.gettempdir(), _DISK_NEEDED), (kept, _DISK_NEEDED)
    for place, needed in needs:
        try:
            free = shutil.disk_usage(place).free
        except OSError as error:
            raise EnvironmentFailure(f"the local cloud needs {place}: {error.strerror}") from error
        if free < needed:
            raise EnvironmentFailure(
                f"{place} has {free // 2**20} MiB free, the local cloud needs {needed // 2**20} MiB"
            )
