"""Starts and stops an emulated Kubernetes cluster, and says how clients use it."""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotelastic_checkpoints import isolated
from support.emulated_kubernetes.cluster_server import ClusterSettings
from support.emulated_kubernetes.program import command

from spotelastic.certificates import Subject, issue, make_authority
from spotelastic.clock import wall
from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError
from spotelastic.local.base.remains import Remains

START_WITHIN = 30.0
END_WITHIN = 30.0
ANSWER_WITHIN = 30.0
_NETS = tuple(f"127.{number}.0.0/16" for number in range(96, 112))


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """An emulated cluster that runs."""

    url: str
    """Of the API server."""
    token: str
    authority: Path
    """The certificate of the API server's authority."""
    kubeconfig: Path
    """A file by which kubectl and other clients use the cluster."""
    folder: Path
    """Its files: `cluster.log`, and in `pods` a folder for each pod."""

    @property
    def id(self) -> str:
        """The mark of the cluster's processes."""
        return Remains(str(self.folder), "").cloud

    def log(self, uid: str) -> Path:
        """Return the file with what the pod of that uid has written. It outlives the pod."""
        return self.folder / "pods" / uid[:8] / "log"

    def cause(self, fault: str, **what: str | float) -> None:
        """Cause a fault: `lose-node` (node), `reclaim-node` and `taint-node` (node, seconds),
        `kill-pod` (namespace, pod), `missing-image` and `image-found` (image). Raises `UsageError`
        if it cannot be.
        """
        self._ask(f"faults/{fault}", json.dumps(what).encode())

    def used(self) -> dict[str, set[tuple[str, str, str]]]:
        """Return what service accounts, NAMESPACE:NAME, have done: verb, group and resource."""
        told = self._ask("used", None)
        return {account: {tuple(each) for each in used} for account, used in told.items()}

    def _ask(self, path: str, body: bytes | None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}",
            body,
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        trust = ssl.create_default_context(cafile=str(self.authority))
        try:
            with urllib.request.urlopen(request, context=trust, timeout=ANSWER_WITHIN) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise UsageError(json.load(error)["message"]) from error


@contextlib.contextmanager
def running() -> Iterator[RunningCluster]:
    """Start a cluster, and end it with all its pods after the block, or with this process.

    It listens on the loopback interface alone. Raises `EnvironmentFailure` if this machine cannot
    run one, and `Unavailable` if it is not ready in time.
    """
    _check_machine()
    remains = Remains(tempfile.mkdtemp(prefix="spotelastic-"), "")
    with contextlib.ExitStack() as stack:
        stack.callback(remains.remove)
        net = stack.enter_context(_claimed())
        process, found = _launch(remains, net)
        stack.callback(_end, process)
        yield found


def _launch(remains: Remains, net: str) -> tuple[subprocess.Popen[bytes], RunningCluster]:
    address = net.replace(".0.0/16", ".0.1")
    now = datetime.fromtimestamp(wall(), UTC)
    authority = make_authority("emulated cluster", now)
    made = issue(authority, Subject("kubernetes", (address,)), now)
    ca, certificate, key = made.write(Path(remains.folder, "tls"))
    token = secrets.token_urlsafe(24)
    settings = ClusterSettings(
        remains, net, address, token, made.authority, str(certificate), str(key)
    )
    ready, announce = os.pipe()
    starter = os.pidfd_open(os.getpid())
    told = {"settings": asdict(settings), "announce": announce, "starter": starter}
    described = Path(remains.folder, "settings.json")
    described.touch(mode=0o600)  # a command line could be read by others
    described.write_text(json.dumps(told))
    try:
        with Path(remains.folder, "cluster.log").open("wb") as output:
            process = subprocess.Popen(
                command("support.emulated_kubernetes.cluster_server", str(described)),
                env=isolated.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[announce, starter],
                start_new_session=True,
            )
    finally:
        os.close(announce)
        os.close(starter)
    try:
        port = _port(ready, Path(remains.folder, "cluster.log"))
    except BaseException:
        _end(process)
        raise
    finally:
        os.close(ready)
    url = f"https://{address}:{port}"
    config = Path(remains.folder, "kubeconfig.json")
    config.touch(mode=0o600)
    config.write_text(json.dumps(_kubeconfig(url, token, ca)))
    return process, RunningCluster(url, token, ca, config, Path(remains.folder))


def _port(ready: int, log: Path) -> int:
    if not select.select([ready], [], [], START_WITHIN)[0]:
        raise Unavailable(f"the emulated cluster was not ready after {START_WITHIN:.0f} s")
    told = json.loads(os.read(ready, 65536) or b"{}")
    if "port" not in told:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        why = told.get("error") or "".join(last) or "it ended while it started"
        raise EnvironmentFailure(f"the emulated cluster did not start: {why}")
    return int(told["port"])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _kubeconfig(url: str, token: str, authority: Path) -> dict[str, object]:
    """Return a kubeconfig (JSON is YAML)."""
    name = "spotelastic-emulated"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": url, "certificate-authority": str(authority)}}
        ],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}
        ],
        "current-context": name,
    }


@contextlib.contextmanager
def _claimed() -> Iterator[str]:
    """Yield a block of loopback addresses that no other cluster on this machine uses.

    The kernel gives it back however this process ends.
    """
    for net in _NETS:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
            try:
                claim.bind(f"\0spotelastic-net-{net}")
            except OSError:
                continue
            yield net
            return
    raise EnvironmentFailure("all blocks of addresses are used by other emulated clusters")


def _check_machine() -> None:
    """Raise `EnvironmentFailure` if pods cannot have mounts of their own here."""
    if sys.platform != "linux":
        raise EnvironmentFailure("the emulated cluster needs Linux: pods are Linux processes")
    program = command("support.emulated_kubernetes.nodes.container")
    tried = subprocess.run(program, capture_output=True, text=True, check=False)
    if tried.returncode:
        told = "".join(tried.stderr.strip().splitlines()[-1:])
        raise EnvironmentFailure(
            f"the emulated cluster needs mount namespaces, which this machine refuses ({told}): "
            "run it as root, or allow users to make namespaces"
        )
