"""Finds out where a training process runs, and connects it to its node's checkpoint daemon.

It runs under an agent, under stock torchrun or another starter, or alone. Under an agent everything
comes from environment variables. Without one, the first rank of each node starts the checkpoint
daemon, rank 0 claims the storage, and all ranks resume from the commit that `LATEST` names.
"""

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.storage.open import folder_of
from spotelastic_checkpoints.types import EpochClaim, MemberRanks, Resume, RoundInfo, Schedule

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.model.protocol import ProtocolVersion, refusal
from spotelastic.training.runtime.local_daemon import OwnDaemon
from spotelastic.training.runtime.local_storage import FRESH, OwnStorage

T = TypeVar("T")

CLAIM_WITHIN = 30.0
"""Seconds within which rank 0 has to claim the storage."""
SEEN_WITHIN = 30.0
"""Seconds for which a network file system may remember that a file did not exist."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The place of this process in the job."""

    rank: int
    world_size: int
    local_rank: int
    node: str
    """A name that exactly the ranks of one node share."""
    group: Any = None
    """Process group that carries Python objects between all ranks; None for a single process."""
    some: tuple[int, ...] = ()
    """The ranks of the group; empty: all."""

    def gather(self, value: T) -> list[T]:
        """Return the value of every rank of the group, by rank."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * (len(self.some) or self.world_size)
        dist.all_gather_object(values, value, group=self.group)
        return values

    @property
    def leads(self) -> bool:
        """Whether this rank does what one of the group does for all."""
        return self.rank == (self.some or (0,))[0]

    def on(self, group: Any, some: Sequence[int]) -> "Ranks":
        """Return the same place, with a group of some of the ranks."""
        return replace(self, group=group, some=tuple(some))


@dataclass(frozen=True, slots=True)
class WorkerSession:
    """How this process reaches its node's daemon, and what the round resumes from."""

    ranks: Ranks
    socket: str
    """Path of the daemon's socket."""
    round: str
    """Incarnation of the round."""
    resume: Resume
    """What the round resumes from."""
    restarts: bool
    """Whether the process may have been restarted without the user asking for it."""
    close: Callable[[bool], None]
    """Ends what this process started. Takes whether the script ended well."""
    afresh: str = "--fresh"
    """What makes the run begin at step 0, for messages."""
    run_id: str = ""
    """The run's id for experiment trackers."""

    def attach(self) -> WorkerClient:
        """Return a client of the node's daemon. Raises `SpotelasticError` if it does not answer."""
        ranks = self.ranks
        try:
            return WorkerClient(
                self.socket, round=self.round, rank=ranks.rank, local_rank=ranks.local_rank
            )
        except CheckpointsError as error:
            self.close(False)
            raise SpotelasticError(str(error)) from error


def find_ranks() -> Ranks:
    """Return this process's ranks. Raises `UsageError` without a process group where one is needed.

    Without LOCAL_RANK, the ranks of one host number themselves; all of them call this together.
    """
    # Where each worker sees only its own GPU, LOCAL_RANK is 0 for all of them.
    told = os.environ.get("SPOTELASTIC_LOCAL_RANK") or os.environ.get("LOCAL_RANK")
    node = os.environ.get("SPOTELASTIC_NODE") or (
        f"{socket.gethostname()}-{os.environ.get('GROUP_RANK', '0')}"
    )
    if not (dist.is_available() and dist.is_initialized()):
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "WORLD_SIZE is greater than 1 but torch.distributed is not initialised: "
                "call torch.distributed.init_process_group before the Checkpointer"
            )
        return Ranks(0, 1, int(told or "0"), node)
    # Layouts are sent as Python objects, which only CPU groups carry without touching the GPU.
    gloo = "gloo" in str(dist.get_backend_config())
    group = dist.group.WORLD if gloo else dist.new_group(backend="gloo")
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), int(told or "0"), node, group)
    if told is None:
        return replace(ranks, local_rank=ranks.gather(node)[: ranks.rank].count(node))
    return ranks


def open_session(
    storage: str | None, schedule: Schedule | None, *, take_over: bool
) -> WorkerSession:
    """Connect this process. `storage`, `schedule` and `take_over` count only without an agent.

    All ranks call it together.
    """
    ranks = find_ranks()
    if "SPOTELASTIC_DAEMON" in os.environ:
        return _under_agent(ranks)
    return _on_our_own(ranks, storage, schedule or Schedule(), take_over=take_over)


def _under_agent(ranks: Ranks) -> WorkerSession:
    """Return the session that the agent describes. Its schedule holds, whatever the script says.

    Where rounds meet at one port (--master-port), a worker that its agent could not end may reach a
    later round's store. It must not pass for a rank of that round.
    """
    _check_protocol(os.environ.get("SPOTELASTIC_PROTOCOL", ""))
    round_ = os.environ["SPOTELASTIC_ROUND"]
    others = [rank for rank, theirs in enumerate(ranks.gather(round_)) if theirs != round_]
    if others:
        raise SpotelasticError(
            f"rank {others[0]} belongs to another round than rank {ranks.rank}: "
            "its node has lost its connection to the run"
        )
    return WorkerSession(
        ranks,
        os.environ["SPOTELASTIC_DAEMON"],
        round_,
        from_json(os.environ["SPOTELASTIC_RESUME"], Resume),
        True,
        lambda _: None,
        run_id=os.environ.get("SPOTELASTIC_RUN_ID", ""),
    )


def _check_protocol(agents: str) -> None:
    """Raise `UsageError` where the script's Python has an incompatible spotelastic installed."""
    major, _, minor = agents.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        return  # another starter of workers need not set it; the daemon checks again
    theirs = ProtocolVersion(int(major), int(minor))
    if refused := refusal(theirs, "this node's agent", f"the script's Python ({sys.executable})"):
        raise UsageError(refused)


def _on_our_own(
    ranks: Ranks, storage: str | None, schedule: Schedule, *, take_over: bool
) -> WorkerSession:
    url = storage or os.environ.get("SPOTELASTIC_STORAGE") or _default_storage()
    daemon: OwnDaemon | None = None
    taken: OwnStorage | None = None
    path = problem = ""
    workers = ranks.gather(ranks.node).count(ranks.node)
    if ranks.local_rank == 0:
        try:
            daemon = OwnDaemon(_owner(), ranks.node, url, workers)
            path = str(daemon.socket)
        except (CheckpointsError, OSError) as error:
            problem = str(error)
    try:
        places = ranks.gather((ranks.node, ranks.local_rank, path, problem))
        _raise_first(problem for *_, problem in places)
        path = next(path for node, _, path, _ in places if path and node == ranks.node)
        nodes = list(dict.fromkeys(node for node, *_ in places))
        if ranks.rank == 0:
            taken, problem = _taken(url, take_over=take_over)
        _raise_first(ranks.gather(problem))
        incarnation, claim = _claim(ranks, path, take_over=take_over)
        if taken is not None:
            taken.tell()
        if len(nodes) > 1:
            _check_shared(ranks, url, nodes)
        members = tuple(
            MemberRanks(slot, node, _ranks_of(node, places)) for slot, node in enumerate(nodes)
        )
        commit = claim.commit
        resume = Resume("store", commit.step, epoch=commit.epoch) if commit else Resume()
        round_ = RoundInfo(
            incarnation=incarnation,
            number=1,
            world_size=ranks.world_size,
            slot=nodes.index(ranks.node),
            members=members,
            epoch=claim.epoch,
            schedule=schedule,
            resume=resume,
        )
        if daemon is not None:
            daemon.begin(round_)
        ranks.gather(None)
    except BaseException:
        _end(daemon, taken, well=False)
        raise
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

    def end(well: bool) -> None:
        _end(daemon, taken, well=well)

    run_id = claim.run_id or incarnation
    return WorkerSession(ranks, path, incarnation, resume, restarted, end, f"{FRESH}=1", run_id)


def _taken(url: str, *, take_over: bool) -> tuple[OwnStorage | None, str]:
    """Take the storage. Returns it, or None and what is wrong."""
    try:
        return OwnStorage(url, _owner(), take_over=take_over), ""
    except SpotelasticError as error:
        return None, str(error)


def _end(daemon: OwnDaemon | None, taken: OwnStorage | None, *, well: bool) -> None:
    """End the daemon first, so that no other run has the storage while it writes there."""
    try:
        if daemon is not None:
            daemon.close()
    finally:
        if taken is not None:
            taken.close(well=well)


def _ranks_of(node: str, places: Sequence[tuple[str, int, str, str]]) -> tuple[int, ...]:
    """Return the node's ranks by local rank, however a starter has dealt them out.

    `places` are sorted by rank; each begins with node and local rank.
    """
    own = [(local, rank) for rank, (name, local, *_) in enumerate(places) if name == node]
    return tuple(rank for _, rank in sorted(own))


def _claim(ranks: Ranks, socket_path: str, *, take_over: bool) -> tuple[str, EpochClaim]:
    """Claim the storage by rank 0, and tell all ranks that and the round's incarnation."""
    round_, claim, problem = uuid.uuid4().hex, None, ""
    if ranks.rank == 0:
        try:
            client = DaemonClient(socket_path)
            claim = client.claim(
                _owner(), timeout=CLAIM_WITHIN, take_over=take_over, run_id=round_[:16]
            )
            client.close()
        except CheckpointsError as error:
            problem = str(error)
    round_, claim, problem = ranks.gather((round_, claim, problem))[0]
    if claim is None:
        raise SpotelasticError(problem)
    return round_, claim


def _check_shared(ranks: Ranks, url: str, nodes: Sequence[str]) -> None:
    """Raise `UsageError` where the storage is a folder that the nodes do not share.

    No step would ever be complete then. A file with a new name is used, because a network file
    system may remember old ones.
    """
    folder = folder_of(url)
    if folder is None:
        return
    token = ranks.gather(f".seen-{uuid.uuid4().hex}")[0]
    if ranks.rank == 0:
        (folder / token).touch()
    ranks.gather(None)
    seen = ranks.local_rank != 0 or _appears(folder / token)
    answers = ranks.gather((ranks.node, seen))
    if ranks.rank == 0:
        (folder / token).unlink(missing_ok=True)
    blind = sorted({node for node, seen in answers if not seen}, key=nodes.index)
    if blind:
        raise UsageError(
            f"storage {folder}: what {nodes[0]} writes there does not appear on "
            f"{', '.join(blind)}: name a folder that all hosts share, or s3://bucket/prefix"
        )


def _appears(file: Path) -> bool:
    deadline = time.monotonic() + SEEN_WITHIN
    while not file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _owner() -> str:
    return os.environ.get("SPOTELASTIC_RUN", "standalone")


def _default_storage() -> str:
    script = Path(sys.argv[0] or "session").stem
    return str(Path.cwd() / "runs" / script)


def _raise_first(problems: Any) -> None:
    for problem in problems:
        if problem:
            raise SpotelasticError(problem)
