"""Chooses the slot that a worker's next save overwrites, and slots to free for fetched data."""

from collections.abc import Callable, Set
from pathlib import Path

from spotelastic_checkpoints.commit.upload_pipeline import Pipeline
from spotelastic_checkpoints.daemon.connections import Client
from spotelastic_checkpoints.daemon.slot_prefault import SlotPrefaulter
from spotelastic_checkpoints.errors import ArenaFull
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena, SlotView
from spotelastic_checkpoints.peers.offers import Offers
from spotelastic_checkpoints.types import Resume, RoundInfo


class SlotAllocator:
    """Hands out the slots of a node to its workers' saves."""

    def __init__(
        self,
        arena: Arena,
        furnishing: SlotPrefaulter,
        uploads: Pipeline,
        offers: Offers | None = None,
        give_up_replicas: Callable[[], bool] = lambda: False,
    ) -> None:
        """`offers` are read by the node that keeps a replica.

        `give_up_replicas` frees the memory that this node's replicas take, and returns whether
        there were any.
        """
        self._arena = arena
        self._furnishing = furnishing
        self._uploads = uploads
        self._offers = offers or Offers(arena)
        self._give_up_replicas = give_up_replicas

    def prepare(self, local_rank: int, nbytes: int, round_: RoundInfo | None) -> list[Path]:
        """Return the slots, of `nbytes` each, that the rank will have. Raises `ArenaFull`."""
        views = self._views(local_rank)
        dispensable = slots.dispensable(views, round_, self._uploads.pinned)
        try:
            return self._furnishing.begin(local_rank, nbytes, dispensable)
        except ArenaFull:
            if not self._give_up_replicas():
                raise
            return self._furnishing.begin(local_rank, nbytes, dispensable)

    def next(self, client: Client, round_: RoundInfo | None, *, urgent: bool) -> Path | None:
        """Return the slot for the client's next save; None while there is none.

        An upload that ends, or a slot that comes into memory, may change that. Uploads give way to
        an `urgent` save.
        """
        missing = self._furnishing.missing(client.slots)
        views = [self._arena.view(path) for path in client.slots]
        path = self._free(views, missing, round_)
        would_help = urgent and slots.choose(views, round_, missing) is not None
        while path is None and would_help and self._uploads.give_way():
            path = self._free(views, missing, round_)
        return path

    def _free(
        self, views: list[SlotView], missing: Set[Path], round_: RoundInfo | None
    ) -> Path | None:
        """Return a free slot.

        One that is copied to another node, or waits for a store that is away, is taken only if no
        other is free: a replica must not make training leave out a save.
        """
        pinned = self._uploads.pinned | missing
        for busy in (pinned | self._offers.in_use, pinned, self._uploads.in_use | missing):
            if path := slots.choose(views, round_, busy):
                return path
        return None

    def make_room(self, resume: Resume, round_: RoundInfo | None) -> None:
        """Discard slots that the next saves would overwrite anyway, for what is fetched to restore.

        A node thus never needs more memory than for its slots.
        """
        source = resume.incarnation, resume.step, resume.layout
        for local_rank in range(self._arena.workers):
            views = self._views(local_rank)
            kept = self._uploads.pinned | {view.path for view in views if _holds(view) == source}
            while len(views) > 1 and (path := slots.choose(views, round_, kept)):
                views = [view for view in views if view.path != path]
                self._furnishing.discard(path)

    def _views(self, local_rank: int) -> list[SlotView]:
        return [self._arena.view(slot.path) for slot in self._arena.slots(local_rank)]


def _holds(view: SlotView) -> tuple[str, int, str] | None:
    header = view.header
    return None if header is None else (header.incarnation, header.step, header.layout)
