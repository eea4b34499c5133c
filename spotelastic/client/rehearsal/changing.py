"""The nodes of the act in which nodes go and come."""

from collections.abc import Callable
from signal import SIGTERM

from spotelastic.client.rehearsal.nodes import Launch, RehearsalNode
from spotelastic.client.rehearsal.records import SeenSteps
from spotelastic.client.rehearsal.rehearsal_plan import Plan
from spotelastic.client.rehearsal.runs import Played, Runs
from spotelastic.signals import send

FAILED = (1, 2)
"""Exit codes of a node whose script has failed, or which could not run it."""


class Changing:
    """Two nodes train; one is killed, two come, and one of these leaves with a notice.

    The ranks wait at certain steps until it has happened (`Orders.gates` of the recording), or a
    node is about to come. Those that begin again from an earlier step come by these once more.
    """

    def __init__(self, runs: Runs, launch: Launch) -> None:
        self._runs, self._launch = runs, launch
        self._progress = SeenSteps(launch.folder)
        self._all: list[RehearsalNode] = []

    def play(self, made: Plan) -> Played:
        """Let it all happen."""
        try:
            self._play(made)
        finally:
            codes = [code if (code := node.code) in FAILED else None for node in self._all]
            self._runs.nodes.end(*self._all)
        return self._runs.played(self._launch, self._all, codes)

    def _play(self, made: Plan) -> None:
        _, second = self._start("a"), self._start("b")
        self._when(lambda seen: seen.world >= 2, "two nodes train")
        self._open(1)
        if not self._when(lambda seen: seen.reached(made.loses, 2), "two nodes train"):
            return
        self._runs.nodes.end(second)
        self._all.remove(second)
        self._open(made.loses)
        self._when(lambda seen: seen.reached(made.comes[0], 1), "one node trains on")
        self._start("c")
        last = self._start("d")
        self._when(lambda seen: seen.world >= 3, "three nodes train")
        for gate in made.comes:
            self._open(gate)
        if self._when(lambda seen: seen.reached(made.leaves, 3), "three nodes train"):
            send(last.process.pid, SIGTERM)  # as a machine that is shut down does
            self._when(lambda seen: seen.waits(2), "two nodes train to the end")

    def _start(self, name: str) -> RehearsalNode:
        node = self._runs.nodes.start(self._launch, name, len(self._all))
        self._all.append(node)
        return node

    def _when(self, condition: Callable[[SeenSteps], bool], what: str) -> bool:
        """Wait until something is so. Returns False if the script has failed before."""
        self._runs.nodes.wait(lambda: condition(self._progress.look()) or self._has_failed(), what)
        return not self._has_failed()

    def _has_failed(self) -> bool:
        return any(node.code in FAILED for node in self._all)

    def _open(self, gate: int) -> None:
        (self._launch.folder / f"open-{gate}").touch()
