"""Lets a stock torchrun form its groups by spotelastic's rounds: `--rdzv-backend=spotelastic`.

    torchrun --rdzv-backend=spotelastic --rdzv-endpoint=a:2379,b:2379,c:2379 \\
             --rdzv-id=job7 --nnodes=2:4 train.py

The endpoints are etcd's; `participant.py` does the rounds. What torchrun is told, and why:

- `num_nodes_waiting` is above zero as soon as the round it runs is no longer the current one, also
  because a node was lost: torchrun then forms a group anew without spending a restart.
- Every round has a TCPStore of its own, in the agent of its first node, on a socket that is bound
  before anybody hears of the address: a late worker never meets another round's keys.
- An agent that leaves does not end the job for the others; a job that is done or failed ends for
  all. A store that does not answer is never torchrun's problem: training goes on.

What torchrun keeps for itself: its monitor looks every 0.1 s, it counts restarts on each node, and
a worker that fails before its peer's lease ran out costs one.

`--rdzv-conf` knows join_timeout (600 s), lease (2 s), quiet (0.5 s without a further arrival before
a change), ready_timeout (60 s for workers to end), node_id and zone; for an etcd that speaks TLS
protocol=https, cacert, cert and key.
"""

import atexit
import logging
import socket
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from spotelastic_checkpoints import addresses, log_records
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from spotelastic.clock import steady, wall
from spotelastic.errors import Unavailable, UsageError
from spotelastic.model.ids import new_id
from spotelastic.model.job import Failure, Job, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.round import Round
from spotelastic.rendezvous.participant import Participant
from spotelastic.store.endpoints import endpoints_of, is_encrypted
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.tls import tls_of

if TYPE_CHECKING:  # torch.distributed hides its classes from type checkers
    from torch._C._distributed_c10d import TCPStore
else:
    from torch.distributed import TCPStore

BACKEND = "spotelastic"
DEFAULT_PORT = 29400
EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""Prefix of the keys of torchrun's exit barrier. An agent enters it when its workers are done,
which a handler learns in no other way.
"""
CONNECT_TIMEOUT = timedelta(seconds=5)
LOOK_AGAIN = timedelta(seconds=0.5)
AGENT_TIMEOUT = timedelta(seconds=300)
"""The time-out that torchrun's agent expects of a store."""
END_TIMEOUT = 5.0
NO_LIMIT = 2**31
"""A limit on restarts that is never reached: torchrun counts restarts."""


class SpotelasticHandler(RendezvousHandler):
    """torch's rendezvous interface on top of a `Participant`."""

    def __init__(self, params: RendezvousParameters) -> None:
        if not logging.getLogger("spotelastic").hasHandlers():  # this process is torchrun's
            log_records.start("[spotelastic] ", log_records.LogStyle.of())
        self._run = params.run_id
        self._join_timeout = float(params.get("join_timeout", 600))
        self._round: Round | None = None
        self._hosted: tuple[str, _RoundStore] | None = None
        endpoints = endpoints_of(params.endpoint, DEFAULT_PORT)
        if not endpoints:
            raise UsageError(
                "--rdzv-endpoint is missing: where etcd is (HOST:PORT, commas between)"
            )
        tls = tls_of(params.config, wanted=is_encrypted(params.endpoint, params.config))
        self._address = params.local_addr or _address_towards(endpoints[0])
        try:
            self._participant = Participant(
                EtcdStore(endpoints, timeout=5.0, tls=tls),
                params.run_id,
                _node(params, self._address),
                _settings(params),
                self._open_store,
            )
        except Unavailable as error:
            members = ", ".join(endpoints)
            raise RendezvousConnectionError(f"no etcd member answers at {members}") from error
        # torchrun shuts no handler down when a signal ends it; this node leaves all the same.
        atexit.register(self._participant.leave)

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._run

    @property
    def use_agent_store(self) -> bool:
        """Workers meet in the round's store, so that no second port is needed."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for a started round with this node, and until all of its nodes are in its store."""
        if self._round is not None:
            self._report(self._round, self._slot(self._round), "a worker failed, says torchrun")
        while True:
            self._round = round_ = self._join()
            store = self._assemble(round_)
            if store is not None:
                break
            self._report(round_, -1, "the round's store ended")
        host, port = addresses.split(round_.store)
        slot = self._slot(round_)
        return RendezvousInfo(store, slot, len(round_.members), RendezvousStoreInfo(host, port))

    def num_nodes_waiting(self) -> int:
        """Above zero if torchrun must form its group anew. Makes no request, and never raises."""
        return int(self._round is not None and self._participant.is_over(self._round.incarnation))

    def is_closed(self) -> bool:
        return self._participant.job is not None

    def set_closed(self) -> None:
        """Ends the job: torchrun reports that it is done."""
        self._participant.end(Job("stopped", wall(), "closed by torchrun"))

    def shutdown(self) -> bool:
        """Leaves the run. torchrun calls this unless a signal ended it. An exception under way
        tells that the job failed.
        """
        error = sys.exc_info()[1]
        if isinstance(error, ChildFailedError):
            self._participant.end(self._failed(error))
        elif error is None and self._round is not None:
            self._participant.finish(self._round.incarnation)
            self._participant.wait_for_end(END_TIMEOUT)
        self._participant.leave()
        atexit.unregister(self._participant.leave)
        return True

    def _join(self) -> Round:
        after = self._round.incarnation if self._round is not None else ""
        try:
            round_ = self._participant.join(after, steady() + self._join_timeout)
        except Unavailable as error:
            raise RendezvousTimeoutError(str(error)) from error
        except UsageError as error:
            raise RendezvousStateError(str(error)) from error
        if round_ is not None:
            return round_
        job = self._participant.job
        if job is not None and job.state == "succeeded":
            # Never needed, or no longer. torch's RendezvousGracefulExitError, which means just
            # this, ends in an AttributeError in its launcher.
            raise SystemExit(0)
        raise RendezvousClosedError(f"run {self._run} has ended: {job.reason if job else ''}")

    # -- the round's store --------------------------------------------------------------------

    def _open_store(self, incarnation: str) -> str:
        """Opens a round's store. Called on the participant's thread, before the address is
        published.
        """
        listener = addresses.listen(self._address, 0, 1024)
        port = listener.getsockname()[1]
        store = _RoundStore(
            self._address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=AGENT_TIMEOUT,
            master_listen_fd=listener.detach(),
        )
        self._hosted = (incarnation, store)
        return addresses.join(self._address, port)

    def _assemble(self, round_: Round) -> "_RoundStore | None":
        """Returns the round's store once every member is in it, or None if that will not happen.

        Otherwise torchrun's first exchange of keys would wait for minutes for a node that was just
        lost.
        """
        try:
            store = self._connect(round_)
            if store.add("spotelastic/here", 1) == len(round_.members):
                store.set("spotelastic/all", "here")
            while not self._participant.is_over(round_.incarnation):
                if _arrives(store, "spotelastic/all"):
                    store.on_exit = partial(self._participant.finish, round_.incarnation)
                    return store
        except dist.DistError:
            pass
        return None

    def _connect(self, round_: Round) -> "_RoundStore":
        if self._hosted is not None and self._hosted[0] == round_.incarnation:
            return self._hosted[1]
        self._hosted = None
        host, port = addresses.split(round_.store)
        store = _RoundStore(
            host, port, is_master=False, wait_for_workers=False, timeout=CONNECT_TIMEOUT
        )
        store.set_timeout(AGENT_TIMEOUT)
        return store

    # -- what went wrong ----------------------------------------------------------------------

    def _slot(self, round_: Round) -> int:
        member = round_.member(self._participant.node)
        return member.slot if member is not None else 0

    def _report(self, round_: Round, rank: int, message: str) -> None:
        """Reports a failure. It counts only while the round is the current one."""
        self._participant.report(
            Failure(
                id=new_id(),
                node=self._participant.node,
                round=round_.incarnation,
                rank=rank,
                local_rank=-1,
                at=wall(),
                exit_code=0,
                message=message,
            )
        )

    def _failed(self, error: ChildFailedError) -> Job:
        rank, first = error.get_first_failure()
        failure = Failure(
            id=new_id(),
            node=self._participant.node,
            round=self._round.incarnation if self._round is not None else "",
            rank=rank,
            local_rank=first.local_rank,
            at=float(first.timestamp),
            exit_code=first.exitcode,
            message=str(first.message),
        ).storable()
        return Job("failed", wall(), f"rank {rank} failed, no restart is left", failure=failure)


class _RoundStore(TCPStore):
    """A store that reports when torchrun's agent enters its exit barrier."""

    on_exit: Callable[[], None] = staticmethod(lambda: None)

    def add(self, key: str, value: int) -> int:
        if key.startswith(EXIT_BARRIER):
            self.on_exit()
        return super().add(key, value)


def _arrives(store: TCPStore, key: str) -> bool:
    """Whether the key appears within a moment. Raises `DistNetworkError` if there is no store."""
    try:
        store.wait([key], LOOK_AGAIN)
    except dist.DistStoreError:
        return False
    return True


# -- what torchrun was given ----------------------------------------------------------------------


def _settings(params: RendezvousParameters) -> Settings:
    return Settings(
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        max_restarts=NO_LIMIT,
        lease=float(params.get("lease", 2)),
        quiet=float(params.get("quiet", 0.5)),
        ready_within=float(params.get("ready_timeout", 60)),
    )


def _node(params: RendezvousParameters, address: str) -> Node:
    name = params.get("node_id") or f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}"
    python = ".".join(map(str, sys.version_info[:3]))
    return Node(
        id=name,
        incarnation=new_id(),
        address=address,
        zone=params.get("zone", ""),
        fingerprint=Fingerprint(
            python, str(torch.__version__), torch.version.cuda or "", launcher="torchrun"
        ),
        spot=False,
    )


def _address_towards(endpoint: str) -> str:
    """Returns this node's address as the store's machine sees it. Sends nothing."""
    try:
        return addresses.towards(*addresses.split(endpoint))
    except OSError as error:
        raise RendezvousConnectionError(f"no route to {endpoint}: {error}") from error
