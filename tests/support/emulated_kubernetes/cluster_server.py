"""Puts the emulated cluster together, and runs it until it is told to end.

`cluster.running` launches it as a process of its own, with a file of settings: `remains`, the `net`
of the pods' addresses, the files of the API server's certificate, and the descriptors `announce`
(to which it writes its port, or why it did not start) and `starter` (a pidfd: when that process
dies, the cluster ends).
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from support.emulated_kubernetes.api.http import Addressed, ApiServer
from support.emulated_kubernetes.api.kinds import NAMESPACES, PODS
from support.emulated_kubernetes.api.objects import ObjectStore
from support.emulated_kubernetes.api.refusals import bad_request
from support.emulated_kubernetes.api.validate import HOLDS_NAMESPACE
from support.emulated_kubernetes.control.control_plane import ControlPlane
from support.emulated_kubernetes.control.jobs import has_ended
from support.emulated_kubernetes.machine_room import MachineRoom, fault_application
from support.emulated_kubernetes.nodes.kubelet import Kubelet
from support.emulated_kubernetes.nodes.runner import PodRunner

from spotelastic.linux import name_process
from spotelastic.local.base.remains import Remains

PASSES = 100
"""Passes of the controllers without a pause, after which others get their turn."""
LOOK_AT_LOG = 0.1
"""Seconds between two looks at a log that is followed."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where the cluster is, and what it may use."""

    remains: Remains
    net: str
    address: str
    """Of the API server."""
    token: str
    authority: str
    """PEM text of the API server's authority."""
    certificate: str
    key: str
    """Files of the API server."""

    @classmethod
    def read(cls, told: dict[str, Any]) -> "ClusterSettings":
        """Return the settings that JSON holds."""
        return cls(**{**told, "remains": Remains(**told["remains"])})


class EmulatedCluster:
    """The objects, the controllers, the nodes and the API server, on one event loop."""

    def __init__(self, settings: ClusterSettings, port: int) -> None:
        self._settings = settings
        self.over = asyncio.Event()
        self._line_times: dict[str, list[float]] = {}
        """When each line of a pod's log was seen, by the pod's uid."""
        self._accounts: dict[str, str] = {}
        """The service accounts, NAMESPACE:NAME, by their tokens."""
        self._dirty = asyncio.Event()
        self.store = ObjectStore()
        self._plane = ControlPlane(self.store)
        loop = asyncio.get_running_loop()
        claims = Path(settings.remains.folder, "claims")
        variables = _variables(settings.address, port)
        self._kubelet = Kubelet(
            self.store, claims, settings.net, self._account, variables, self._dirty.set
        )
        self._runner = self._kubelet.runner = PodRunner(
            settings.remains, self._kubelet.exited, self.over.set
        )
        self._room = MachineRoom(self.store, self._kubelet, loop.call_later)
        parts = {"log": self._log, "eviction": self._room.evict}
        self.api = ApiServer(self.store, settings.token, self._accounts, parts)
        self.store.on_change.append(lambda _: self._dirty.set())

    async def run(self, ready: Callable[[], None]) -> None:
        """Run until `over` is set. `ready` is called when requests may come."""
        await self._runner.start()
        self.store.create(
            NAMESPACES, "", {"metadata": {"name": "default", "finalizers": [HOLDS_NAMESPACE]}}
        )
        self._room.furnish()
        ready()
        working = asyncio.create_task(self._work())
        over = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait((working, over), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()  # raises what has ended it
        finally:
            for task in (working, over):
                task.cancel()
            self.api.close()
            await self._runner.close()

    def application(self) -> web.Application:
        """Return what is served over HTTP."""
        app = self.api.application()
        faults = {name: partial(self._cause, fault) for name, fault in self._room.routes()}
        app.router.add_post("/faults/{name}", fault_application(faults))
        return app

    async def _work(self) -> None:
        """Let controllers and nodes do what is to be done, whenever something has changed."""
        while True:
            for _ in range(PASSES):
                self._dirty.clear()
                looks = [each for each in (self._plane.reconcile(), self._kubelet.sync()) if each]
                if not self._dirty.is_set():
                    break
            wait = max(0.0, min(looks) - self.store.clock()) if looks else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dirty.wait(), wait)
            await asyncio.sleep(0)

    def _cause(self, fault: Callable[[Any], None], told: Any) -> None:
        fault(told)
        self._dirty.set()

    def _account(self, name: str) -> dict[str, bytes]:
        tokens = {account: token for token, account in self._accounts.items()}
        token = tokens.get(name) or secrets.token_urlsafe(24)
        self._accounts[token] = name
        return {"token": token.encode(), "ca.crt": self._settings.authority.encode()}

    def _stamped(self, uid: str, text: bytes, within: float) -> bytes:
        """Return a pod's lines of the last so many seconds, each with the time at which it was seen
        first.
        """
        lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)
        times, now = self._line_times.setdefault(uid, []), self.store.clock()
        times += [now] * (len(lines) - len(times))
        return b"".join(
            b"%s %s" % (datetime.fromtimestamp(at, UTC).isoformat().encode(), line)
            for at, line in zip(times, lines, strict=True)
            if at >= now - within
        )

    async def _log(self, request: web.Request, at: Addressed) -> web.StreamResponse:
        """Answer `GET …/pods/NAME/log`.

        With `follow` and `tailLines`, or with `timestamps` and `sinceSeconds`.
        """
        pod = self.store.get(PODS, at.place, at.name)
        uid = pod["metadata"]["uid"]
        if pod.get("status", {}).get("phase", "Pending") == "Pending":
            raise bad_request(f'container "node" in pod "{at.name}" is waiting to start')
        file = self._runner.log(uid)
        if request.query.get("timestamps") == "true":
            within = float(request.query.get("sinceSeconds", "inf"))
            stamped = self._stamped(uid, _read(file, 0), within)
            return web.Response(body=stamped, content_type="text/plain")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        text, follows = _read(file, 0), request.query.get("follow") == "true"
        position = len(text)
        if tail := request.query.get("tailLines"):
            lines = text.splitlines(keepends=True)
            text = b"".join(lines[max(0, len(lines) - int(tail)) :])
        await response.write(text)
        while follows and not self.over.is_set():
            found = self.store.find(PODS, at.place, at.name)
            is_over = found is None or has_ended(found)
            if more := _read(file, position):
                position += len(more)
                await response.write(more)
            if is_over:
                break
            await asyncio.sleep(LOOK_AT_LOG)
        return response


def main() -> None:
    """Run the cluster that the file in the first argument describes."""
    told = json.loads(Path(sys.argv[1]).read_text())
    name_process("se-cluster")
    settings = ClusterSettings.read(told["settings"])
    try:
        asyncio.run(_serve(settings, told["announce"], told["starter"]))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(told["announce"], json.dumps({"error": str(error)}).encode())
        raise
    finally:
        settings.remains.remove()


async def _serve(settings: ClusterSettings, announce: int, starter: int | None) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.certificate, settings.key)
    loop = asyncio.get_running_loop()
    socket = await asyncio.to_thread(_listening, settings.address)
    port = int(socket.getsockname()[1])
    cluster = EmulatedCluster(settings, port)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, cluster.over.set)
    if starter is not None:
        loop.add_reader(starter, cluster.over.set)
    runner = web.AppRunner(cluster.application(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, socket, ssl_context=context, shutdown_timeout=1.0).start()

    def ready() -> None:
        os.write(announce, json.dumps({"port": port}).encode())
        os.close(announce)

    try:
        await cluster.run(ready)
    finally:
        await runner.cleanup()


def _listening(address: str) -> Any:
    import socket

    made = socket.create_server((address, 0))
    made.setblocking(False)
    return made


def _read(file: Path, position: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(position)
            return opened.read()
    except FileNotFoundError:
        return b""


def _variables(address: str, port: int) -> dict[str, str]:
    """Return the variables of every container: nothing of the user's must reach one."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin:/usr/bin:/bin"]),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        # All pods share the same cores, and would use the same GPU, which NCCL refuses.
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "KUBERNETES_SERVICE_HOST": address,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
    }
