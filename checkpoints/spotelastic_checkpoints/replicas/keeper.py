"""Keeps a replica of what another node alone holds, for the round that both are in.

    offered -> files opened -> ranges -> copied -> sealed, file by file

Must never happen:

- a replica holds bytes of two saves: each range is asked for by the generation of the slot that was
  offered, and the other daemon looks at it again after the bytes. All files of a set are marked as
  being written before the first byte comes, and none is sealed before the last one has;
- two histories are mixed: only saves that the round of both nodes has sealed are asked for;
- the last whole replica is overwritten: there are two sets of files, and the newest stays;
- training, a restore or the upload of a node under notice waits: ranges are asked for one at a
  time, none while `may_pull` says no, and whoever needs the memory takes it.

A daemon that takes over finds whole sets as it finds slots. A set that is not whole is overwritten.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import xxhash
from msgspec.structs import replace

from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError
from spotelastic_checkpoints.memory import arena as memory
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena, Slot
from spotelastic_checkpoints.memory.free_memory import mib
from spotelastic_checkpoints.peers import transfers
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.messages import AwaitOffer, Digest, Offer, OfferedSlot
from spotelastic_checkpoints.peers.transfers import Peer
from spotelastic_checkpoints.replicas.rates import PullPace, Reached, usual_rate
from spotelastic_checkpoints.threads import step_back
from spotelastic_checkpoints.types import RoundInfo, Snapshot, Ward

logger = logging.getLogger(__name__)

AGAIN = 1.0
"""Seconds until the other daemon is asked again after an error."""
LOOK_EVERY = 0.1
"""Seconds between looks at whether ranges may be asked for."""
SHARE = 0.5
"""Share of the free memory that replicas may take. Slots have theirs before."""
COMPARED = 64
"""Ranges whose checksums are asked for at a time."""


class ReplicaKeeper:
    """Keeps the replica that a round asks for, in a thread of its own."""

    def __init__(
        self,
        arena: Arena,
        credentials: PeerCredentials,
        may_pull: Callable[[], bool],
        has_slots: Callable[[], bool],
        tell: Callable[[str], None],
        piece: int = transfers.RANGE,
    ) -> None:
        """`may_pull` says whether ranges may be asked for at the moment.

        `has_slots` says whether this node's own slots are in memory. `tell` is called, in any
        thread, with a problem. `piece` is the number of bytes of a range.
        """
        self._arena = arena
        self._credentials = credentials
        self._may_pull = may_pull
        self._has_slots = has_slots
        self._tell = tell
        self._piece = piece
        self._writing = threading.Lock()
        """Held by the one thread that writes replicas."""
        self._current: _Keeping | None = None
        self._declined = ""
        """Incarnation of the round that keeps none, because slots needed the memory."""
        self.pulled = 0
        """Bytes that have come from other daemons. What has not changed is not among them."""
        self.pull_time = 0.0
        """Seconds that the newest replica of this round took; 0 before the first."""

    def begin(self, round_: RoundInfo) -> None:
        """Keep what this round asks for. What is there of earlier rounds stays until then."""
        current = self._current
        if current is not None and current.is_for(round_):
            return
        if round_.incarnation == self._declined:
            return
        self.end()
        self.pull_time = 0.0
        if round_.ward is not None:
            self._current = _Keeping(round_, round_.ward)
            threading.Thread(
                target=self._keep, args=(self._current,), name="replicas", daemon=True
            ).start()

    def end(self) -> None:
        """Stop. What is not whole is abandoned."""
        if self._current is not None:
            self._current.stop()
            self._current = None

    def give_up_memory(self) -> bool:
        """Delete all replicas, because slots need their memory. Returns whether there were any.

        No more are made until the next round.
        """
        paths = [slot.path for slot in self._arena.replicas()]
        if paths and self._current is not None:
            self._declined = self._current.incarnation
        self.end()
        for path in paths:
            self._arena.discard(path)
        if paths:
            self._tell("the replicas of another node's shards gave way to this node's own saves")
        return bool(paths)

    def _keep(self, keeping: "_Keeping") -> None:
        step_back()
        with self._writing:
            while not keeping.over.is_set():
                try:
                    with closing(Peer(keeping.ward.daemon, self._credentials)) as peer:
                        keeping.connected(peer)
                        self._follow(peer, keeping)
                except ArenaFull as error:
                    keeping.tell_once(self._tell, f"no replica of {keeping.ward.node}: {error}")
                except CheckpointsError as error:
                    # It has died, or has overwritten what it had offered: its next save serves.
                    logger.debug(f"the replica of {keeping.ward.node} waits: {error}")
                except Exception as error:  # training goes on without a replica
                    why = f"no replica of {keeping.ward.node}: {type(error).__name__}: {error}"
                    keeping.tell_once(self._tell, why)
                    logger.debug(why, exc_info=True)
                keeping.over.wait(AGAIN)

    def _follow(self, peer: Peer, keeping: "_Keeping") -> None:
        """Make a replica of each save that is offered, until the round is over."""
        while not keeping.over.is_set():
            if not (self._has_slots() and self._may_pull()):
                keeping.over.wait(LOOK_EVERY)
                continue
            request = AwaitOffer(keeping.incarnation, self._newest(keeping), keeping.pace.rate)
            offer = peer.offer(request)
            if offer is not None and offer.slots:
                begun = self._reached()
                self._pull(peer, offer, keeping)
                keeping.pulled(begun, self._reached())

    def _reached(self) -> Reached:
        """Return how far training is on this node."""
        worker = self._arena.pages[0].read(0)
        return Reached(worker.step, worker.last_step_at)

    def _newest(self, keeping: "_Keeping") -> int:
        """Return the step of the newest replica of this round; 0 if there is none."""
        found = (s.step for s in self._replicas() if s.incarnation == keeping.incarnation)
        return max(found, default=0)

    def _replicas(self) -> list[Snapshot]:
        return slots.replicas(self._arena)

    # -- one replica ------------------------------------------------------------------------------

    def _pull(self, peer: Peer, offer: Offer, keeping: "_Keeping") -> None:
        begun = time.monotonic()
        number = self._set_to_overwrite(keeping.round)
        described = [_described(slot) for slot in offer.slots]
        sizes = [
            memory.slot_bytes(header.data_bytes, index, header.values)
            for header, index in described
        ]
        self._check_room(sizes)
        self._forget_others(number, len(sizes))
        files = [
            self._arena.furnish(self._arena.replica_path(number, rank), size)
            for rank, size in enumerate(sizes)
        ]
        for file in files:
            file.open()
        crash_points.reached("replica-opened")
        for file, slot in zip(files, offer.slots, strict=True):
            if not self._copy(peer, slot, file, self._before(number, slot), keeping):
                return
        crash_points.reached("replica-copied")
        for file, slot, (header, index) in zip(files, offer.slots, described, strict=True):
            file.write_index(header.data_bytes, index)
            file.seal(header, [item.length for item in slot.items if not item.is_tensor])
            crash_points.reached("replica-sealed")
        keeping.told = ""
        total = sum(header.data_bytes for header, _ in described)
        self.pull_time = time.monotonic() - begun
        step = offer.slots[0].header.step
        logger.info(
            f"has a replica of {keeping.ward.node} at step {step}: {mib(total)} in "
            f"{self.pull_time:.1f} s"
        )

    def _set_to_overwrite(self, round_: RoundInfo) -> int:
        """Return the set that is worth less: it is not whole, no round can use it, or older."""

        def worth(number: int) -> tuple[bool, bool, int]:
            headers = (header for _, header in self._arena.sealed_replicas(number))
            usable = [
                each
                for each in slots.snapshots(headers, replica=True)
                if slots.on_lineage(round_, each.incarnation, each.step)
            ]
            if not usable:
                return False, False, 0
            [newest, *_] = slots.newest_first(usable, round_)
            return True, newest.incarnation == round_.incarnation, newest.step

        return min(slots.REPLICA_SETS, key=worth)

    def _check_room(self, sizes: Sequence[int]) -> None:
        """Raise `ArenaFull` where two replicas do not fit beside this node's own slots."""
        there = {slot.path: slot.size for slot in self._arena.replicas()}
        paths = [
            (self._arena.replica_path(number, rank), size)
            for number in slots.REPLICA_SETS
            for rank, size in enumerate(sizes)
        ]
        lacking = sum(max(size - there.get(path, 0), 0) for path, size in paths)
        left = self._arena.room()
        if lacking > SHARE * left.free:
            raise ArenaFull(f"two of {mib(sum(sizes))} need {mib(lacking)} more; {left}")

    def _forget_others(self, number: int, count: int) -> None:
        """Empty the set, and delete files of it that the replica does not need."""
        for slot in self._arena.replicas(number):
            slot.drop()
            rank = int(slot.path.name.rpartition("-")[2])
            if rank >= count:
                self._arena.discard(slot.path)

    def _before(self, number: int, slot: OfferedSlot) -> Slot | None:
        """Return the file of the other set that has the same items, of an earlier save."""
        header = slot.header
        for other in slots.REPLICA_SETS:
            for file, known in self._arena.sealed_replicas(other) if other != number else ():
                wanted = header.layout, header.rank, header.alone_bytes
                if (known.layout, known.rank, known.data_bytes) == wanted:
                    return file
        return None

    def _copy(
        self, peer: Peer, slot: OfferedSlot, file: Slot, before: Slot | None, keeping: "_Keeping"
    ) -> bool:
        """Bring the bytes of one slot. Returns False where the round is over.

        What has not changed since the replica before comes from there: its bytes have the checksum
        that the other daemon has told.
        """
        size, rank, generation = slot.header.alone_bytes, slot.header.rank, slot.generation
        block = self._piece * COMPARED
        for begun in range(0, size, block):
            length = min(block, size - begun)
            told: Sequence[int] = ()
            if before is not None:
                told = peer.digests(Digest(rank, generation, begun, length, self._piece))
            for number, at in enumerate(range(begun, begun + length, self._piece)):
                if not self._waited(keeping):
                    return False
                end = min(at + self._piece, begun + length)
                target = file.data[at:end]
                same = before.data[at:end] if before is not None else None
                if same is not None and xxhash.xxh3_64_intdigest(same) == told[number]:
                    target[:] = same
                else:
                    peer.read((rank, generation), at, target)
                    self.pulled += end - at
                crash_points.reached("replica-wrote")
        return True

    def _waited(self, keeping: "_Keeping") -> bool:
        """Wait until the next range may be asked for. Returns False where the round is over."""
        while not self._may_pull():
            if keeping.over.wait(LOOK_EVERY):
                return False
        return not keeping.over.is_set()


class _Keeping:
    """The work for one round."""

    def __init__(self, round_: RoundInfo, ward: Ward) -> None:
        self.round = round_
        self.ward = ward
        self.incarnation = round_.incarnation
        self.pace = PullPace.of(ward.rate or usual_rate(Path("/sys/class/net")))
        self._follows = not ward.rate
        """Whether the rate follows what it costs: nobody has said it."""
        self._idle_since: Reached | None = None
        self.over = threading.Event()
        self.told = ""
        self._peer: Peer | None = None

    def is_for(self, round_: RoundInfo) -> bool:
        """Whether this is what the round asks for."""
        return (self.incarnation, self.ward) == (round_.incarnation, round_.ward)

    def connected(self, peer: Peer) -> None:
        """Name the connection that `stop` ends."""
        self._peer = peer
        if self.over.is_set():
            peer.abort()

    def pulled(self, begun: Reached, ended: Reached) -> None:
        """Note how far training was when a pull began and ended."""
        if self._follows and self._idle_since is not None:
            self.pace = self.pace.after(self._idle_since.mean(begun), begun.mean(ended))
        self._idle_since = ended

    def stop(self) -> None:
        """End the work, and a read that is under way."""
        self.over.set()
        if self._peer is not None:
            with suppress(OSError):
                self._peer.abort()

    def tell_once(self, tell: Callable[[str], None], problem: str) -> None:
        """Report a problem unless it was the last one reported."""
        if problem != self.told:
            tell(problem)
        self.told = problem


def _described(slot: OfferedSlot) -> tuple[memory.SlotHeader, bytes]:
    """Return the header and the index of the replica's file."""
    index = memory.encode_index(slot.items)
    values = sum(not item.is_tensor for item in slot.items)
    header = replace(
        slot.header,
        whole=False,
        owned=slot.header.alone,
        owned_bytes=slot.header.alone_bytes,
        data_bytes=slot.header.alone_bytes,
        index_bytes=len(index),
        values=values,
        due=False,
        covers=(),
    )
    return header, index
