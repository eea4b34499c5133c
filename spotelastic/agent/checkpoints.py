"""Starts or finds the checkpoint daemon of an agent's node, and talks to it.

The daemon outlives a crashed agent if `AgentConfig.keep_daemon` says so. Otherwise it holds the
reading end of a pipe, and ends when the agent is gone.
"""

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from spotelastic_checkpoints import addresses, messages
from spotelastic_checkpoints.errors import (
    CheckpointsError,
    DaemonUnavailable,
    ProtocolRefused,
    StorageOwned,
)
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.launch import start_daemon
from spotelastic_checkpoints.types import MemberRanks, RoundInfo, Ward

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.state.events import Claimed, Flushed, LocalEvent
from spotelastic.agent.state.values import Workers
from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.replication import Replication
from spotelastic.model.round import Member, Round, RoundEnd
from spotelastic.store.tls import TlsFiles

logger = logging.getLogger(__name__)

_PEER = struct.Struct("3i")
"""Process, user and group of the other side of a Unix socket."""
CLAIM_TIMEOUT = 10.0
STOP_TIMEOUT = 10.0
FILES_WITHIN = 30.0
"""Seconds that the script's last files may take. The daemon knows of a notice, and takes less."""


class Checkpoints:
    """The checkpoint daemon of one node. Calls raise `DaemonUnavailable` while there is none."""

    def __init__(self, config: AgentConfig, post: Callable[[LocalEvent], None]) -> None:
        self.socket = config.state / "daemon.sock"
        self._config = config
        self._post = post
        self._client: DaemonClient | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    @property
    def client(self) -> DaemonClient:
        if self._client is None:
            raise DaemonUnavailable("the checkpoint daemon is being started")
        return self._client

    def open(self) -> str:
        """Find the daemon or start it. Returns where it serves its peers (host:port)."""
        given_up, self._client = self._client, None
        if given_up is not None:
            given_up.close()
        client = self._client = self._find() or self._start()
        client.subscribe(lambda event: self._said(client, event))
        return client.status().listen

    def close(self) -> None:
        """End the daemon, even one that an earlier agent started.

        A daemon is kept running only for agents that crash.
        """
        if self._client is not None:
            # A job that has failed has come here without a flush.
            with contextlib.suppress(CheckpointsError):
                self._client.flush_files(FILES_WITHIN)
            self._client.close()
            if self._process is None:
                _end(self.socket)
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)
            self._process.kill()
            self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)

    def begin(self, round_: Round, member: Member) -> None:
        """Tells the daemon of the round, as the node in `member` sees it."""
        self.client.begin(round_info(round_, member, self._config.settings.replicate))

    def round_end(self, workers: Workers) -> RoundEnd:
        """Return what this node's workers have executed, from their pages."""
        steps = [w for w in self.client.status().workers if w.attached or w.last_step_at]
        return RoundEnd(
            workers.round,
            first_step_at=min((w.first_step_at for w in steps if w.first_step_at), default=0.0),
            last_step=max((w.step for w in steps), default=0),
            last_step_at=max((w.last_step_at for w in steps), default=0.0),
        )

    def claim(self, round_: Round) -> None:
        """Claims a storage epoch on a thread of its own.

        The object store may be slow or unreachable.
        """
        client, config = self.client, self._config

        def claim() -> None:
            try:
                answer = client.claim(
                    config.run,
                    timeout=CLAIM_TIMEOUT,
                    take_over=config.take_over,
                    rounds=(round_.incarnation, round_.parent),
                    run_id=round_.run_id,
                )
                self._post(
                    Claimed(round_.incarnation, answer.epoch, answer.commit, run_id=answer.run_id)
                )
            except CheckpointsError as error:
                owned = isinstance(error, StorageOwned)
                self._post(Claimed(round_.incarnation, 0, None, str(error), owned=owned))

        threading.Thread(target=claim, name="claim", daemon=True).start()

    def flush(self, round_: str, within: float) -> None:
        """Wait, on a thread of its own, until everything due is committed.

        The wait lasts at most `within` seconds. After it, the script's last files are waited for.
        """
        client = self.client

        def flush() -> None:
            until = steady() + within
            with contextlib.suppress(CheckpointsError):
                client.flush(within)
            with contextlib.suppress(CheckpointsError):
                client.flush_files(max(until - steady(), FILES_WITHIN))
            self._post(Flushed(round_))

        threading.Thread(target=flush, name="flush", daemon=True).start()

    def _find(self) -> DaemonClient | None:
        """Find a daemon that outlived an earlier agent on this node."""
        try:
            client = DaemonClient(str(self.socket))
            client.status()
        except ProtocolRefused as error:
            raise EnvironmentFailure(
                f"{self.socket}: a checkpoint daemon runs on this node already: {error}"
            ) from error
        except CheckpointsError:
            return None
        return client

    def _start(self) -> DaemonClient:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        reading = None if self._config.keep_daemon else self._new_lifeline()
        try:
            self._process = start_daemon(
                socket=self.socket,
                arena=self._config.shm,
                storage=self._config.storage,
                owner=self._config.run,
                node=self._config.node,
                listen=addresses.join(self._config.address, 0),
                workers=self._config.settings.workers,
                token=self._config.token,
                certificate=_files(self._config.daemon_tls),
                peer_name=self._config.daemon_name,
                keep_last=self._config.settings.keep_last,
                keep_every=self._config.settings.keep_every,
                folder=self._config.workdir,
                output=self._config.settings.outputs,
                not_its=[self._config.state, *filter(None, (self._config.logs,))],
                look=self._config.may_lose_files,
                lifeline=reading,
                log=self._config.logs / "daemon.log" if self._config.logs else None,
            )
        except DaemonUnavailable as error:
            raise EnvironmentFailure(str(error)) from error
        finally:
            if reading is not None:
                os.close(reading)
        return DaemonClient(str(self.socket))

    def _new_lifeline(self) -> int:
        """Return the reading end of a pipe.

        The writing end is ours alone, and closes with this process.
        """
        if self._lifeline >= 0:
            os.close(self._lifeline)
        reading, self._lifeline = os.pipe2(os.O_CLOEXEC)
        return reading

    def _said(self, client: DaemonClient, event: messages.DaemonEvent) -> None:
        if client is not self._client:
            return  # Given up meanwhile: its end is no news, and would be the next one's, too.
        if isinstance(event, messages.SaveFailed):
            logger.warning(f"checkpoints: {event.message}")
        else:
            self._post(event)


def round_info(
    round_: Round,
    member: Member,
    replicate: Replication = Replication(),  # noqa: B008
) -> RoundInfo:
    """Return what the daemon of the node in `member` has to know of the round."""
    own, rate = (each for each in round_.partners if each.node == member.node), replicate.rate
    wards = (Ward(each.of, each.daemon, rate or 0.0) for each in own)
    return RoundInfo(
        incarnation=round_.incarnation,
        number=round_.number,
        world_size=round_.world_size,
        slot=member.slot,
        members=tuple(MemberRanks(m.slot, m.node, round_.ranks(m)) for m in round_.members),
        epoch=round_.epoch,
        lineage=round_.lineage,
        schedule=round_.schedule,
        resume=round_.resume,
        cause=round_.cause,
        ward=next(wards, None),
        known=round_.known,
        run_id=round_.run_id,
    )


def _files(tls: TlsFiles | None) -> tuple[Path, Path, Path] | None:
    if tls is None:
        return None
    assert tls.cacert and tls.cert and tls.key
    return tls.cacert, tls.cert, tls.key


def _end(path: Path) -> None:
    """Asks a daemon that is no child of ours to end, and waits until it hangs up."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(STOP_TIMEOUT)
        channel.connect(str(path))
        credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        os.kill(_PEER.unpack(credentials)[0], signal.SIGTERM)
        channel.recv(1)
