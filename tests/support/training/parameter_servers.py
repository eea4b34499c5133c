"""Jobs of real nodes with a parameter server, and what must hold when they have ended."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from support.places import SCRIPTS
from support.processes.run_launcher import Run, running

from spotelastic.model.round import Round
from spotelastic.store.codec import decode

SCRIPT = SCRIPTS / "train_parameter_server.py"
ALL = ("a", "b", "c", "d")
WINDOWS, UPDATES = 24, 40
EVERY = ("--snapshot-every", "1", "--checkpoint-every", "4")


@contextlib.contextmanager
def training(
    endpoint: str, folder: Path, mode: str, windows: int = WINDOWS, **options: Any
) -> Iterator[Run]:
    """Four nodes, of which the first two serve and stand by. No round has fewer than three."""
    script = (str(SCRIPT), str(folder), mode, str(windows), str(UPDATES), "0.02")
    given: dict[str, Any] = {"nnodes": "3:5", "script": script, "flags": EVERY, **options}
    with running(endpoint, uuid.uuid4().hex, folder, **given) as run:
        for node in ALL:
            run.add(node)
        yield run


def ends_well(run: Run, windows: int = WINDOWS) -> list[dict[str, list[float]]]:
    """Each batch is part of the last parameters, once. Returns what each node has at the end."""
    for node in run.nodes.values():
        assert node.wait() == 0, node.output[-3000:]
    found = [json.loads((run.folder / f"{node}.end").read_text()) for node in run.nodes]
    for end in found:
        wrong = [(at, mark) for at, mark in enumerate(end["marks"]) if mark != 1.0]
        assert not wrong, f"batches that count otherwise than once: {wrong[:20]}"
        assert end["network"] == found[0]["network"]
    assert max(number for node in run.nodes for number, *_ in finished(run, node)) == windows
    return found


def none_was_lost(run: Run) -> None:
    """No batch was acknowledged twice: it would have been lost in between.

    On a machine that is busy, a standby may seem to be lost together with the server, or a node may
    come so late that all begin afresh with it, before anything was saved.
    """
    if any(
        after.resume.kind == "fresh" or not lives(before, 2) & lives(after, len(after.members))
        for before, after in pairwise(rounds(run))
    ):
        return
    told = [
        int(line)
        for file in run.folder.glob("*.acknowledged")
        for line in file.read_text().splitlines()
    ]
    assert told and len(told) == len({*told})


def lives(round_: Round, first: int) -> set[tuple[str, str]]:
    """The first members of a round, each with its incarnation."""
    return {(each.node, each.incarnation) for each in round_.members if each.slot < first}


def rounds(run: Run) -> list[Round]:
    """All rounds that trained, in their order."""
    key = run.keys.round
    written = [entry.data for entry in run.history.entries if entry.key == key and entry.data]
    found = {round_.number: round_ for data in written if (round_ := decode(data, Round))}
    return [round_ for _, round_ in sorted(found.items()) if round_.phase != "proposed"]


def finished(run: Run, node: str) -> list[tuple[int, int, int]]:
    """(window, rank, pid) of each window that the node has finished."""
    file = run.folder / f"{node}.windows"  # who came last may have finished none
    rows = file.read_text().splitlines() if file.exists() else []
    found = [tuple(map(int, row.split())) for row in rows]
    return [(window, rank, pid) for window, rank, pid in found]


def roles(round_: Round) -> list[str]:
    """The nodes of a round by rank: server, standby, and workers."""
    return [member.node for member in sorted(round_.members, key=lambda member: member.slot)]


def kept_their_processes(run: Run, *nodes: str) -> None:
    """As far as they were in all rounds: on a machine that is busy, others may seem to be lost."""
    all_rounds = [lives(round_, len(round_.members)) for round_ in rounds(run)]
    stayed = {node for node, _ in set.intersection(*all_rounds)}
    for node in stayed.intersection(nodes):
        assert len({pid for *_, pid in finished(run, node)}) == 1
