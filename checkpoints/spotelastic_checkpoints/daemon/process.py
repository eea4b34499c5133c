"""Runs a node's checkpoint daemon: `python -m spotelastic_checkpoints.daemon.process`.

It serves the node's agent and workers on a Unix socket and other daemons on TCP. It ends on
SIGTERM, or when its lifeline ends or delivers a byte. The socket appears when the daemon is ready.
A lock allows one daemon per arena.

A script that dies must never take along what it had sealed. So the end of the lifeline is followed
by a last upload of the newest save, whether it was due or not. Only then is the arena deleted.
SIGTERM leaves the arena to the process that started the daemon. SIGINT makes the daemon delete it,
because that process may be killed before it can.
"""

import argparse
import asyncio
import ctypes
import fcntl
import logging
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from spotelastic_checkpoints import addresses, framing, log_records, messages
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.commit.upload_pipeline import Pipeline
from spotelastic_checkpoints.daemon import handover
from spotelastic_checkpoints.daemon.connections import Client
from spotelastic_checkpoints.daemon.file_keeper import ScriptFolder
from spotelastic_checkpoints.daemon.service import Service
from spotelastic_checkpoints.errors import CheckpointsError, ProtocolRefused
from spotelastic_checkpoints.log_records import LogStyle
from spotelastic_checkpoints.memory.arena import MOST_SLOTS, PRIVATE, Arena
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.tls import PeerTls
from spotelastic_checkpoints.peers.transfers import PeerServer
from spotelastic_checkpoints.protocol_version import refusal
from spotelastic_checkpoints.storage.open import folder_of
from spotelastic_checkpoints.threads import minded

logger = logging.getLogger(__name__)

NAME = b"se-daemon"
"""Name of the process in `ps`."""
_PR_SET_NAME = 15
LAST_UPLOAD = 30.0
"""Seconds without an uploaded byte after which a daemon whose lifeline has ended gives up."""
LAST_RECORD = 10.0
"""Seconds that it then waits for the commit, to which other nodes may contribute."""
LOOK_EVERY = 0.05
"""Seconds between looks at the last upload."""


def main() -> int:
    """Run the daemon and return its exit code."""
    options = _options()
    log_records.start("spotelastic: ", LogStyle.of())
    log_records.node(options.node)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME, 0, 0, 0)
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:  # its agent's: uploads have none over training
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        return asyncio.run(_serve(options))
    except CheckpointsError as error:
        logger.error(str(error))
        return 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="spotelastic_checkpoints.daemon.process", description=__doc__
    )
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--arena", type=Path, required=True, help="a folder in shared memory")
    parser.add_argument("--storage", required=True, help="s3://bucket/prefix or a folder")
    parser.add_argument("--owner", required=True, help="the run that LATEST belongs to")
    parser.add_argument("--node", required=True)
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port for other daemons")
    parser.add_argument(
        "--certificate", type=Path, action="append", help="for TLS: authority, certificate, key"
    )
    parser.add_argument("--peer-name", default="", help="common name of daemons (default: any)")
    parser.add_argument("--workers", type=int, default=1, help="workers on this node")
    parser.add_argument("--keep-last", type=int, help="newest checkpoints to keep")
    parser.add_argument("--keep-every", type=int, help="keep multiples of this step")
    parser.add_argument("--folder", type=Path, help="the script's working folder")
    parser.add_argument("--output", action="append", default=[], help="its folders to keep")
    parser.add_argument("--not-its", type=Path, action="append", default=[], help="folders of ours")
    parser.add_argument("--look", action="store_true", help="tell of files that nobody keeps")
    parser.add_argument("--lifeline", type=int, help="descriptor whose end or first byte ends it")
    parser.add_argument("--outlasts", action="store_true", help="only the lifeline ends it")
    return parser.parse_args()


async def _serve(options: argparse.Namespace) -> int:
    options.arena.mkdir(PRIVATE, parents=True, exist_ok=True)
    lock = _lock(options.arena)
    credentials = PeerCredentials(
        os.environ.get("SPOTELASTIC_TOKEN", ""),
        _tls(*options.certificate, name=options.peer_name) if options.certificate else None,
    )
    service = Service(
        Arena(options.arena, options.workers),
        storage=options.storage,
        owner=options.owner,
        node=options.node,
        credentials=credentials,
        most_slots=_number("SPOTELASTIC_SLOTS", None, least=1, default=MOST_SLOTS),
        keep=Keep(
            _number("SPOTELASTIC_KEEP_LAST", options.keep_last, least=1, default=3),
            _number("SPOTELASTIC_KEEP_EVERY", options.keep_every, least=0, default=0),
        ),
        folder=_script_folder(options),
    )
    over, deserted = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        deserted.set()
        over.set()

    if options.outlasts:
        loop.add_signal_handler(signal.SIGTERM, lambda: None)
    else:
        loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_signal_handler(signal.SIGINT, give_up)
    running = loop.create_task(service.run())
    running.add_done_callback(lambda _: over.set())

    failed: list[str] = []

    def fail(thread: str, error: str) -> None:
        """End the daemon: other nodes would ask in vain. The next one finds what is sealed."""
        failed.append(f"its thread “{thread}” ended: {error}")
        loop.call_soon_threadsafe(over.set)

    with minded(("peers",), fail):
        peers = _peer_server(options, service, credentials)
        service.listen = peers.address
        unix = await _listen(options.socket, service)
        lifeline = loop.create_task(_watch(options, service, deserted, over))
        await over.wait()
    lifeline.cancel()
    unix.close()
    peers.close()
    options.socket.unlink(missing_ok=True)
    if running.done() and not running.cancelled() and (error := running.exception()):
        raise error
    if failed:
        logger.error(f"the checkpoint daemon ends: {failed[0]}")
        os._exit(1)
    running.cancel()
    service.close()
    if deserted.is_set() and options.lifeline is not None:
        shutil.rmtree(options.arena, ignore_errors=True)
    lock.close()
    sys.stdout.flush()
    # A thread that waits for a store which does not answer must not delay the end of the process.
    os._exit(0)


def _peer_server(
    options: argparse.Namespace, service: Service, credentials: PeerCredentials
) -> PeerServer:
    """Listen for other daemons, where the daemon before did unless a port is given."""
    host, port = addresses.split(options.listen)
    before = 0 if port else recall_port(options.arena)
    listen = partial(PeerServer, service.arena, credentials, host, offers=service.offers)
    try:
        peers = listen(before or port, service.warn)
    except OSError:
        if not before:
            raise
        peers = listen(port, service.warn)
    remember_port(options.arena, peers.address)
    return peers


def _script_folder(options: argparse.Namespace) -> ScriptFolder | None:
    if options.folder is None:
        return None
    storage = folder_of(options.storage)
    ours = (*options.not_its, *(() if storage is None else (storage,)))
    return ScriptFolder(options.folder, tuple(options.output), ours, options.look)


def _tls(cacert: Path, cert: Path, key: Path, *, name: str) -> PeerTls:
    return PeerTls(cacert, cert, key, name)


def _number(name: str, given: int | None, *, least: int, default: int) -> int:
    """Return the number that was given, or else the one in the environment, or the default."""
    told = os.environ.get(name, str(default)) if given is None else str(given)
    if not told.isdigit() or int(told) < least:
        raise CheckpointsError(f"{name}={told}: a number of at least {least} is needed")
    return int(told)


def _lock(arena: Path) -> IO[str]:
    lock = (arena / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise CheckpointsError(f"another checkpoint daemon serves {arena}") from None
    return lock


async def _listen(path: Path, service: Service) -> asyncio.Server:
    """Open the Unix socket. The lock is held, so a socket that exists is a dead daemon's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if len(os.fsencode(path)) > 100:
        raise CheckpointsError(f"the socket's path is longer than Unix allows: {path}")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(writer.write)
        service.clients.add(client)
        try:
            said = messages.decode_greeting(await _frame(reader))
            refused = refusal(said.protocol, "the process that asks", "this checkpoint daemon")
            while True:
                body = await _frame(reader)
                if refused:
                    answer = f"{ProtocolRefused.__name__}: {refused}"
                    writer.write(framing.frame(messages.request_id(body), answer, None))
                else:
                    service.handle(client, *messages.decode_request(body))
        except (OSError, EOFError, msgspec.MsgspecError):
            pass
        finally:
            service.disconnected(client)
            writer.close()

    # Bound under another name first: the socket appears when it listens.
    early = path.with_name(path.name + ".new")
    early.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(serve, early)
    early.rename(path)
    return server


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = framing.FRAME.unpack(await reader.readexactly(framing.FRAME.size))
    return await reader.readexactly(length)


async def _watch(
    options: argparse.Namespace, service: Service, deserted: asyncio.Event, over: asyncio.Event
) -> None:
    """Wait for the end of the lifeline, make the last upload, and end the daemon.

    Workers that are still there may ask whether everything is committed, so the daemon outlives
    them.
    """
    if options.lifeline is None:
        return
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    with os.fdopen(options.lifeline, "rb", buffering=0) as pipe, suppress(OSError):
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        await reader.read(1)
    deserted.set()
    try:
        handover.mark(options.arena, options.owner, options.storage)
        await service.clients.deserted(LAST_UPLOAD)
        service.end()
        await _upload_all(service)
    finally:
        over.set()


async def _upload_all(service: Service) -> None:
    """Upload first what was due, then the newest save.

    Of several nodes, not all need have sealed the same step as their newest. A part without the
    others' may still be committed by them, or by the next claim.
    """
    if not await _sent(service.pipeline):
        return
    service.saves.want(every_save=True)
    if not await _sent(service.pipeline):
        return
    await service.files.flush(LAST_UPLOAD)
    deadline = time.monotonic() + LAST_RECORD
    while service.pipeline.busy() and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_EVERY)


async def _sent(pipeline: Pipeline) -> bool:
    """Wait until no slot is needed any more. Returns False when the upload makes no progress."""
    most, deadline = (0, 0, 0), time.monotonic() + LAST_UPLOAD
    while pipeline.pinned:
        if (upload := pipeline.upload) is not None:
            far = upload.epoch, upload.step, upload.done
            if far > most:
                most, deadline = far, time.monotonic() + LAST_UPLOAD
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_EVERY)
    return True


if __name__ == "__main__":
    sys.exit(main())


PORT_FILE = "port"


def remember_port(arena: Path, address: str) -> None:
    """Write down the port of an endpoint, for the daemon that takes over.

    Other nodes were told of it when their round began: whoever keeps this node's replica, or
    restores from its slots, goes on asking there.
    """
    with suppress(OSError):  # Slots may have left no room for it: the next one has another port.
        (arena / PORT_FILE).write_text(str(addresses.split(address)[1]))


def recall_port(arena: Path) -> int:
    """Return the port of the daemon before; 0 if there is none, or it is not known."""
    try:
        return int((arena / PORT_FILE).read_text())
    except (OSError, ValueError):
        return 0
