"""Causes interruptions and other faults in the local cloud on request.

This is the client, and its server side.

Requests are POSTs of JSON to `/_spotelastic/<fault>` on the cloud's endpoint, which cannot be the
name of an S3 bucket.
"""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from threading import RLock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spotelastic.errors import SpotelasticError, Unavailable, UsageError
from spotelastic.local import signatures
from spotelastic.local.base import processes
from spotelastic.local.cloud import ADMINISTRATOR
from spotelastic.local.refusals import replied
from spotelastic.signals import send

if TYPE_CHECKING:
    from spotelastic.local.autoscaling.regional_groups import RegionalScaling
    from spotelastic.local.cloud import CloudInfo
    from spotelastic.local.instances.machines import LocalInstance, LocalInstances
    from spotelastic.local.instances.spot_market import SpotMarket

PREFIX = "/_spotelastic/"
_TIMEOUT = 30.0


class FaultClient:
    """Asks a running cloud for faults. Raises `UsageError` for what is impossible."""

    def __init__(self, info: "CloudInfo") -> None:
        self._info = info

    def interrupt(self, instance: str, seconds: float) -> None:
        """Give a spot instance notice, and take it away after that many seconds."""
        self._ask("interrupt", instance=instance, seconds=seconds)

    def rebalance(self, instance: str) -> None:
        """Send a spot instance a rebalance recommendation; it stays."""
        self._ask("rebalance", instance=instance)

    def kill(self, instance: str) -> None:
        """Take an instance away without notice."""
        self._ask("kill", instance=instance)

    def kill_process(self, instance: str, role: str) -> int:
        """SIGKILL one process of an instance, named by its role; return its pid."""
        return int(self._ask("kill_process", instance=instance, role=role))

    def set_capacity(self, type: str, zone: str, count: int) -> None:
        """Set how many instances of the type the zone has in all, running ones included."""
        self._ask("set_capacity", type=type, zone=zone, count=count)

    def _ask(self, fault: str, **arguments: Any) -> Any:
        address = urlsplit(self._info.endpoint)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT)
        url, body = f"{self._info.endpoint}{PREFIX}{fault}", json.dumps(arguments)
        try:
            signed = signatures.sign(ADMINISTRATOR, self._info.secret, "POST", url, body)
            connection.request("POST", PREFIX + fault, body, signed)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(f"the local cloud did not answer ({fault}): {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise UsageError(answer["error"])
        return answer["result"]


@dataclass(frozen=True)
class Desk:
    """The server side: one method per fault, each documented in `FaultClient`."""

    lock: RLock
    machines: "LocalInstances"
    scaling: "RegionalScaling"
    market: "SpotMarket"
    cloud: str

    def interrupt(self, instance: str, seconds: float) -> None:
        if seconds < 0:
            raise UsageError(f"cannot interrupt in {seconds} seconds")
        self.machines.interrupt(self._spot(instance), seconds)

    def rebalance(self, instance: str) -> None:
        self.machines.recommend_rebalance(self._spot(instance))

    def kill(self, instance: str) -> None:
        machine = self._living(instance)
        cause = "Server.SpotInstanceTermination" if machine.spot else "Server.InternalError"
        self.machines.terminate(machine.it, cause)

    def kill_process(self, instance: str, role: str) -> int:
        self._living(instance)
        found = processes.marked(self.cloud, instance)
        for process in found:
            if process.role == role and send(process.pid, signal.SIGKILL):
                return process.pid
        roles = ", ".join(sorted({process.role for process in found})) or "none"
        raise UsageError(f"{instance} runs no {role}; it runs {roles}")

    def set_capacity(self, type: str, zone: str, count: int) -> None:
        self.market.limits[type, zone] = count
        self.scaling.capacity_changed()

    def _living(self, instance: str) -> "LocalInstance":
        machine = self.machines.get(instance)
        if machine is None or machine.state not in ("pending", "running"):
            state = "not there" if machine is None else machine.state
            raise UsageError(f"instance {instance} is {state} in the local cloud")
        return machine

    def _spot(self, instance: str) -> "LocalInstance":
        machine = self._living(instance)
        if not machine.spot:
            raise UsageError(
                f"instance {instance} is on-demand: AWS gives such instances no notice"
            )
        return machine


def answer(desk: Desk, fault: str, body: bytes) -> tuple[str, bytes]:
    """Carry out one request; return the HTTP status and body."""
    try:
        if fault.startswith("_") or not callable(getattr(type(desk), fault, None)):
            raise UsageError(f"no such fault: {fault}")
        with desk.lock:
            result = getattr(desk, fault)(**json.loads(body))
    except (SpotelasticError, TypeError, ValueError) as error:
        return "400 Bad Request", json.dumps({"error": str(error)}).encode()
    return "200 OK", json.dumps({"result": result}).encode()


def middleware(desk: Desk, application: Callable[..., Any]) -> Callable[..., Any]:
    """Return a WSGI application that answers faults and passes other requests on."""

    def handle(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = environ.get("PATH_INFO", "")
        if not path.startswith(PREFIX):
            return application(environ, start_response)
        body = environ["wsgi.input"].read(signatures.length_of(environ))
        status, payload = answer(desk, path.removeprefix(PREFIX), body)
        return replied(start_response, payload, status=status)

    return handle
