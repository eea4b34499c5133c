"""Brings up one of the three etcd members on its control node, whatever disks were lost before.

A member's data are on its disk, which outlives its instances. What a disk cannot say stands in the
bucket (`generations.py`): the newest generation, which is one life of the cluster's etcd, and what
each member took part in.

      its disk holds the generation ──────────────────────────────────► resume
      it never took part in the generation ───────────────────────────► begin, with its snapshot
      it did, its disk is gone, and the others have a quorum ─────────► enter as a new member
      it did, its disk is gone, and with most disks so is the quorum ─► open the next generation
      otherwise ──────────────────────────────────────────────────────► wait for the others

No member ever begins a generation twice: an empty member under an old name would have forgotten
what it promised to the others. Every member checks at times for a newer generation than its own,
and then goes over to it.
"""

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spotelastic.clock import steady
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.controller.etcd import snapshots
from spotelastic.controller.etcd.generations import Generation, GenerationClaim, Generations
from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable, told
from spotelastic.store.etcd_server import roster
from spotelastic.store.etcd_server.embedded import entry
from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig, find_binary, serves
from spotelastic.store.etcd_server.roster import Roster
from spotelastic.store.etcd_server.snapshot import restore

logger = logging.getLogger(__name__)

LOOK_AGAIN = 1.0
"""Seconds between two looks of a member that waits for the others."""
FOLLOW = 15.0
"""Seconds between two looks for a newer generation while the member's own does not serve."""
FOLLOW_AT_REST = 60.0
"""Seconds between two such looks while it serves, and no member opens another one."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What one member sees before it starts."""

    member: str
    members: tuple[str, ...]
    generation: Generation | None
    claims: Mapping[str, GenerationClaim]
    peer: str = ""
    """The member's own host:port among members."""
    roster: Roster | None = None
    snapshot: str = ""


# -- pure ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start etcd: `how` is resume or begin, or join, replace or add (`embedded.entry`)."""

    how: str


@dataclass(frozen=True, slots=True)
class OpenGeneration:
    """Record a new generation, and look again."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class KeepWaiting:
    reason: str


def decide(seen: Sight) -> Start | OpenGeneration | KeepWaiting:
    if seen.generation is None:
        return OpenGeneration(Generation(1))
    number, mine = seen.generation.number, seen.claims[seen.member]
    if mine.holds == number:
        return Start("resume")
    if mine.joined < number:
        return Start("begin")
    how = entry(seen.peer, seen.roster)
    if how in ("join", "replace", "add"):
        return Start(how)
    lost = sum(each.joined == number > each.holds for each in seen.claims.values())
    if (len(seen.members) - lost) * 2 > len(seen.members):
        return KeepWaiting("its disk was lost, and the other members do not have a leader (yet)")
    return OpenGeneration(Generation(number + 1, seen.snapshot))


# -- act -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberLifecycleConfig:
    """The configuration of one member.

    `member` is what all generations have in common; its data lie below `folder`. `endpoints` are
    the client addresses of all members, by name.
    """

    member: MemberConfig
    folder: Path
    endpoints: Mapping[str, str]
    log: Path


class MemberLifecycle:
    """Runs one member on one instance, for as long as the instance lives."""

    def __init__(
        self,
        config: MemberLifecycleConfig,
        objects: ClusterBucket,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._generations = Generations(objects)
        self._objects = objects
        self._binary = find_binary()
        self._generation = 0
        self._etcd: EtcdMember | None = None
        self._pause = pause
        self._over = threading.Event()
        """Whether there is a newer generation than the member's own."""

    @property
    def etcd(self) -> EtcdMember:
        """The member's process. Raises `Unavailable` before the first start."""
        if self._etcd is None:
            raise Unavailable(f"etcd member {self._config.member.name} was not started")
        return self._etcd

    def start(self) -> EtcdMember:
        """Wait until `decide` lets the member start, and start etcd, which may not serve yet.

        A restart in the same generation needs no bucket: `follow` reports a newer one.
        """
        held = _held(self._config.folder)
        if self._etcd is not None and held == self._generation and not self._over.is_set():
            config = self._etcd.config
        else:
            self._over.clear()
            config = self._prepare()
        self._etcd = etcd = EtcdMember(config, log=self._config.log, binary=self._binary)
        etcd.start()
        return etcd

    def follow(self) -> None:
        """End etcd when there is a newer generation, so that it is started again in that.

        Runs on a thread of its own.
        """
        member, looked_at = self._config.member, steady()
        while True:
            self._pause(FOLLOW)
            try:
                if steady() - looked_at < FOLLOW_AT_REST and serves(member.client, member.tls):
                    continue
                looked_at = steady()
                self._go_over(self._generations.number())
            except Exception as error:  # the next look may succeed
                logger.warning(told(error), exc_info=True)

    def _go_over(self, newest: int) -> None:
        if newest > self._generation and self.etcd.running:
            logger.info(f"etcd goes on in its generation {newest}")
            self._over.set()
            os.kill(self.etcd.pid, signal.SIGTERM)

    def _prepare(self) -> MemberConfig:
        """Return how to start. By then the bucket says that the member takes part."""
        told = ""
        while True:
            try:
                seen = self._look()
                match decide(seen):
                    case OpenGeneration(generation):
                        self._open(generation)
                    case Start(how):
                        if (config := self._enter(seen, how)) is not None:
                            return config
                    case KeepWaiting(reason):
                        told = self._tell(told, reason)
                        self._pause(LOOK_AGAIN)
            except SpotelasticError as error:
                told = self._tell(told, str(error))
                self._pause(LOOK_AGAIN)

    def _tell(self, told: str, reason: str) -> str:
        if reason != told:
            logger.warning(reason)
        return reason

    def _look(self) -> Sight:
        """Collect what the member sees.

        The other members are asked only if its own disk does not settle how to start.
        """
        config, generations = self._config, self._generations
        name = config.member.name
        generation = generations.newest()
        known = generations.claims()
        mine = GenerationClaim(known.get(name, GenerationClaim()).joined, _held(config.folder))
        claims = known | {name: mine}
        sight = Sight(name, tuple(config.endpoints), generation, claims, config.member.peer)
        number = 0 if generation is None else generation.number
        if mine.joined < number or mine.holds == number:
            return sight
        generations.put(name, mine)
        others = [each for each in config.endpoints if each != name]
        answer = roster.ask([config.endpoints[each] for each in others], config.member.tls)
        newest = snapshots.newest(self._objects)
        return replace(sight, roster=answer, snapshot=newest)

    def _open(self, generation: Generation) -> None:
        if generation.number > 1:
            origin = generation.snapshot or "nothing: there is no snapshot"
            logger.warning(f"most members of etcd lost their disks: starting from {origin}")
        self._generations.open(generation)

    def _enter(self, seen: Sight, how: str) -> MemberConfig | None:
        """Start the member, or return None if a newer generation was recorded meanwhile."""
        config, generation = self._config, seen.generation
        assert generation is not None
        number, name = generation.number, config.member.name
        if how != "resume":
            self._generations.put(name, GenerationClaim(number, number))
            if self._generations.newest() != generation:
                return None
        base = config.member
        found = replace(
            base, data_dir=config.folder / f"etcd-{number:06d}", token=f"{base.token}-{number}"
        )
        _discard(config.folder, keep=number if how == "resume" else 0)
        if how == "begin" and generation.snapshot:
            self._restore(generation.snapshot, found)
        elif how in ("join", "replace", "add"):
            assert seen.roster is not None
            cluster = _admitted(seen.roster, how, name, base)
            found = replace(found, cluster=cluster, state="existing")
        self._generation = number
        logger.info(f"etcd member {name}: {how} (generation {number})")
        return found

    def _restore(self, snapshot: str, config: MemberConfig) -> None:
        data = self._objects.get(snapshot)
        if data is None:
            raise EnvironmentFailure(f"the snapshot {self._objects.url(snapshot)} is gone")
        with tempfile.NamedTemporaryFile(dir=self._config.folder) as file:
            file.write(data)
            file.flush()
            restore(Path(file.name), config, self._binary)


def _admitted(seen: Roster, how: str, name: str, config: MemberConfig) -> dict[str, str]:
    """Has the cluster admit the member without its data. Returns the peers by name."""
    others = [each for each in seen.members if each.peer != config.peer]
    if how == "replace":
        (mine,) = (each for each in seen.members if each.peer == config.peer)
        roster.remove(seen.endpoint, mine.id, config.tls)
    if how in ("replace", "add"):
        roster.add(seen.endpoint, config.peer, config.tls)
    return {**{each.name: each.peer for each in others}, name: config.peer}


def _held(folder: Path) -> int:
    """Return the newest generation whose data the disk holds.

    etcd creates its log as a whole or not at all.
    """
    found = [path.parts[-4] for path in folder.glob("etcd-*/member/wal/*.wal")]
    return max((int(name.removeprefix("etcd-")) for name in found), default=0)


def _discard(folder: Path, keep: int) -> None:
    for path in folder.glob("etcd-*"):
        if path.name != f"etcd-{keep:06d}":
            shutil.rmtree(path)
