"""Runs the local cloud's process, which `cloud.start` launches with its settings as JSON.

Some settings are file descriptors. `announce` is written to when the cloud is ready, or why it is
not. `starter`, if given, is a pidfd: when that process dies, the cloud ends. `user`, if given, is
the connection of the first command that uses the cloud, which then ends with its last user
(users.py).
"""

import contextlib
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
from dataclasses import asdict
from ipaddress import IPv4Network
from pathlib import Path
from threading import Event, Thread
from typing import Any

from spotelastic_checkpoints.threads import minded

from spotelastic.errors import EnvironmentFailure, SpotelasticError
from spotelastic.linux import name_process
from spotelastic.local.base import processes
from spotelastic.local.base.remains import Remains, write_atomically
from spotelastic.local.cloud import REGIONS, CloudInfo
from spotelastic.local.server import Config, Server

HELPERS = ("starter", "aws", "users", "imds", "hypervisor", "agenda")
"""Beginnings of the names of threads without which the cloud would stand still: it ends."""
_IMDS_PORT = 1338
_ZONES = ("a", "b", "c")
_NETS = tuple(f"127.{number}.0.0/16" for number in range(80, 96))


def main() -> None:
    """Run the local cloud until a signal, or until it has no users any more."""
    os.umask(0o077)  # what the cloud and its instances write is their owner's
    settings = json.loads(sys.argv[1])
    (announce,) = settings["announce"]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    name_process("se-cloud")
    over = Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    for starter in settings["starter"]:
        Thread(target=_await_death, args=(starter, over), name="starter", daemon=True).start()
    remains = Remains(**settings["remains"])
    try:
        with _claim_net() as claim, minded(HELPERS, lambda *_: over.set()):
            _run(settings, remains, claim.net, announce, over)
    except SpotelasticError as error:
        _announce_failure(announce, str(error))
        raise SystemExit(error.exit_code) from None
    except Exception as error:
        _announce_failure(announce, f"the local cloud did not start: {error!r}")
        raise
    finally:
        remains.remove()


def _run(settings: dict[str, Any], remains: Remains, net: str, announce: int, over: Event) -> None:
    config = Config(
        remains=remains,
        net=net,
        imds_port=_imds_port(net),
        buckets=Path(settings["buckets"]),
        logs=Path(settings["logs"]),
        boot_command=tuple(settings["boot_command"]),
    )
    # What moto brings stays. Half of the start would go into looking for garbage among it.
    gc.disable()
    server = Server(config, lost=over.set)
    server.start()
    gc.freeze()
    gc.enable()
    try:
        info = CloudInfo(
            endpoint=server.endpoint,
            pid=os.getpid(),
            folder=remains.folder,
            net=net,
            region=REGIONS[0],
            zones=tuple(REGIONS[0] + zone for zone in _ZONES),
            imds_port=config.imds_port,
            started=processes.started_at(os.getpid()),
            secret=server.secret,
        )
        text = json.dumps(asdict(info))
        write_atomically(Path(remains.record), text)
        server.serve_users(over.set, [socket.socket(fileno=user) for user in settings["user"]])
        os.write(announce, text.encode())
        os.close(announce)
        over.wait()
    finally:
        server.close()


def _announce_failure(announce: int, message: str) -> None:
    with contextlib.suppress(OSError):  # closed: the cloud was already up
        os.write(announce, json.dumps({"error": message}).encode())


def _await_death(starter: int, over: Event) -> None:
    select.select([starter], [], [])
    over.set()


class _Claim:
    """A block of loopback addresses that no other cloud on the machine uses while this one lives.

    It is held by an abstract socket of that name. This is as wide as the loopback interface (one
    network namespace), and the kernel releases it however the process ends.
    """

    def __init__(self, net: str) -> None:
        self.net = net
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0spotelastic-net-{net}")

    def __enter__(self) -> "_Claim":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _claim_net() -> _Claim:
    """Claim the first free block of loopback addresses."""
    for net in _NETS:
        try:
            return _Claim(net)
        except OSError:
            continue
    raise EnvironmentFailure(
        f"all blocks of addresses are used by other local clouds: {', '.join(_NETS)}"
    )


def _imds_port(net: str) -> int:
    """Return one port for the metadata services of all instances: the usual or any free one."""
    address = str(IPv4Network(net)[-2])
    for port in (_IMDS_PORT, 0):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EnvironmentFailure(f"cannot bind a port on {address}")
