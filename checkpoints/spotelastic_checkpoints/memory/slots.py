"""Decides which complete saves a node's sealed slots hold, and which slot the next save overwrites.

Pure functions of slot headers and the current round.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from spotelastic_checkpoints.memory.arena import Arena, Slot, SlotHeader, SlotView
from spotelastic_checkpoints.types import RoundInfo, Snapshot

REPLICA_SETS = (0, 1)
"""Sets of files for replicas: while one is written, the other is whole."""


def snapshots(headers: Iterable[SlotHeader], *, replica: bool = False) -> list[Snapshot]:
    """Return the saves that all ranks of the node have sealed, by step.

    With `replica` the headers are those of one set of another node's replicas.
    """
    groups: dict[tuple[str, int, str], dict[int, SlotHeader]] = defaultdict(dict)
    for header in headers:
        groups[header.incarnation, header.step, header.layout][header.rank] = header
    complete = [
        _snapshot(list(group.values()), replica)
        for group in groups.values()
        if set(group) == set(next(iter(group.values())).ranks)
    ]
    return sorted(complete, key=lambda snapshot: snapshot.step)


def members(
    sealed: Iterable[tuple[Slot, SlotHeader]], incarnation: str, step: int, layout: str
) -> list[tuple[Slot, SlotHeader]]:
    """Return the slots of one save, one of each rank that has sealed it.

    A step may be sealed twice: first as a snapshot, then again to be committed. Ranks may have one
    or the other, and it must never happen that these differ. So a state that was changed in between
    is sealed as another layout (`Saving._commit_step`). The second one is returned, which stays.
    """
    found: dict[int, tuple[Slot, SlotHeader]] = {}
    for slot, header in sealed:
        if (header.incarnation, header.step, header.layout) == (incarnation, step, layout):
            known = found.get(header.rank)
            if known is None or (header.due and not known[1].due):
                found[header.rank] = slot, header
    return list(found.values())


def replicas(arena: Arena) -> list[Snapshot]:
    """Return the replicas that are whole, by step: all files of a set are of one save."""
    found = [
        snapshot
        for number in REPLICA_SETS
        for snapshot in snapshots(
            (header for _, header in arena.sealed_replicas(number)), replica=True
        )
    ]
    return sorted(found, key=lambda snapshot: snapshot.step)


def _snapshot(headers: Sequence[SlotHeader], replica: bool) -> Snapshot:
    first = headers[0]
    return Snapshot(
        incarnation=first.incarnation,
        step=first.step,
        layout=first.layout,
        ranks=tuple(sorted(first.ranks)),
        world_size=first.world_size,
        whole=first.whole,
        nbytes=sum(header.data_bytes for header in headers),
        covers=first.covers,
        replica=replica,
    )


def on_lineage(round_: RoundInfo, incarnation: str, step: int) -> bool:
    """Return whether a save is part of the history that the round goes on from."""
    if incarnation == round_.incarnation:
        return True
    bounds = {branch.incarnation: branch.step for branch in round_.lineage}
    return incarnation in bounds and step <= bounds[incarnation]


def newest_first(snapshots: Iterable[Snapshot], round_: RoundInfo) -> list[Snapshot]:
    """Sort snapshots by age, those that the round itself has sealed first.

    A run that was sent back has older saves with higher steps. Of one step all nodes have the same
    order.
    """

    def age(snapshot: Snapshot) -> tuple[tuple[bool, int], str]:
        return _age(round_, snapshot.incarnation, snapshot.step), snapshot.layout

    return sorted(snapshots, key=age, reverse=True)


def choose(
    views: Sequence[SlotView], round_: RoundInfo | None, pinned: Collection[Path]
) -> Path | None:
    """Return the slot of one rank that the next save overwrites; None while there is none.

    It is never one that is being uploaded, nor the newest save on the lineage, unless the rank has
    one slot only.
    """
    if len(views) == 1:
        return None if views[0].path in pinned else views[0].path
    free = dispensable(views, round_, pinned)
    return free[0] if free else None


def dispensable(
    views: Sequence[SlotView], round_: RoundInfo | None, pinned: Collection[Path]
) -> list[Path]:
    """Return the slots of one rank that may be overwritten, the least valuable first.

    First come slots that hold nothing, then saves that no round can use any more, then the oldest.
    Of a step that was sealed twice, the one that is not to be uploaded comes first.
    """

    def usable(view: SlotView) -> bool:
        header = view.header
        return header is not None and (
            round_ is None or on_lineage(round_, header.incarnation, header.step)
        )

    def age(view: SlotView) -> tuple[bool, int, bool]:
        header = view.header
        if header is None:
            return False, 0, False
        return *_age(round_, header.incarnation, header.step), header.due

    newest = max((view for view in views if usable(view)), key=age, default=None)
    free = [view for view in views if view is not newest and view.path not in pinned]
    free.sort(key=lambda view: (view.header is not None, usable(view), age(view)))
    return [view.path for view in free]


def _age(round_: RoundInfo | None, incarnation: str, step: int) -> tuple[bool, int]:
    """Return a key that sorts saves from the oldest to the newest."""
    return round_ is not None and incarnation == round_.incarnation, step
