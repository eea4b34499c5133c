"""Random kills, freezes, departures and arrivals, each sequence from a seed of its own.

Whatever happened, the run comes to rest in the right world: one round that etcd, every agent and
every worker agree on. `make soak` gives each turn seeds of its own; to repeat one:
`SEQUENCE_SEEDS=<seed> pytest tests/faults/test_random_sequences.py`.
"""

import contextlib
import json
import os
import random
import signal
import uuid
from pathlib import Path

import pytest
from support.processes.run_launcher import Run, running
from support.repo.soak import seeds
from support.store.etcd_members import EtcdCluster, wait_until

from spotelastic.model.round import Round

pytestmark = [pytest.mark.faults, pytest.mark.every_turn]

SCRIPT = Path(__file__).parent.parent / "support/scripts/train_plain.py"
NODES = 4
"""At most so many live at once, of which three train."""


def chosen() -> list[int]:
    given, turn = os.environ.get("SEQUENCE_SEEDS"), os.environ.get("SOAK_TURN")
    if given:
        return [int(seed) for seed in given.split(",")]
    return seeds(int(turn)) if turn else [1]


class Sequence:
    """What happens to one run; it does itself undo what would otherwise last."""

    def __init__(self, run: Run, etcd: EtcdCluster, seed: int) -> None:
        self.run, self.etcd = run, etcd
        self.random = random.Random(seed)
        self.told: list[str] = []
        self._names = iter(f"n{i}" for i in range(100))
        self._asked: list[str] = []
        self._frozen: list[str] = []
        self._down: str = ""
        for _ in range(2):
            self.add()

    @property
    def alive(self) -> list[str]:
        return [name for name, node in self.run.nodes.items() if node.process.poll() is None]

    @property
    def staying(self) -> list[str]:
        """Those that nobody has asked to leave."""
        return [name for name in self.alive if name not in self._asked]

    def add(self) -> None:
        if len(self.alive) < NODES:
            name = next(self._names)
            self.run.add(name)
            self.told.append(f"add {name}")

    def kill(self) -> None:
        if len(self.staying) > 1:
            name = self.random.choice(self.staying)
            self.run.nodes[name].kill()
            self.told.append(f"kill {name}")

    def leave(self) -> None:
        if len(self.staying) > 1:
            name = self.random.choice(self.staying)
            self.run.nodes[name].signal(signal.SIGTERM)
            self._asked.append(name)
            self.told.append(f"ask {name} to leave")

    def fail(self) -> None:
        name = self.random.choice(self.staying)
        for pid in self.run.nodes[name].workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.told.append(f"kill the workers of {name}")

    def freeze(self) -> None:
        name = self.random.choice(self.staying)
        self.run.nodes[name].signal(signal.SIGSTOP)
        self._frozen.append(name)
        self.told.append(f"freeze {name}")

    def thaw(self) -> None:
        for name in self._frozen:
            if self.run.nodes[name].process.poll() is None:
                self.run.nodes[name].signal(signal.SIGCONT)
        self._frozen.clear()

    def member_down(self) -> None:
        self.member_up()
        self._down = self.random.choice(sorted(self.etcd.members))
        self.etcd.kill(self._down)
        self.told.append(f"kill etcd's {self._down}")

    def member_up(self) -> None:
        if self._down:
            self.etcd.start(self._down)
        self._down = ""

    def happen(self) -> None:
        """Six to ten events, each a moment after another or at the same time."""
        kinds = [self.add, self.add, self.kill, self.leave, self.fail, self.freeze]
        for _ in range(self.random.randint(6, 10)):
            self.random.choice([*kinds, self.thaw, self.member_down])()
            self.run.lets_pass(self.random.choice([0.0, 0.1, 0.5, 1.5]))
        self.thaw()
        self.member_up()

    def comes_to_rest(self) -> Round:
        """Two nodes at least, three at most train, all that wish to."""
        wait_until(self._leavers_gone, "who was asked to leave has left")
        while len(self.alive) < 2:
            self.add()
        wished = set(self.alive)

        def rests(round_: Round | None) -> bool:
            return (
                round_ is not None
                and round_.phase == "started"
                and {m.node for m in round_.members} <= wished
                and len(round_.members) == min(len(wished), 3)
                and all(self.life(m.node)["port"] == port_of(round_) for m in round_.members)
            )

        round_ = self.run.wait(lambda s: rests(s.round), "one round of all").round
        assert round_ is not None
        return round_

    def life(self, node: str) -> dict[str, int]:
        """What the node's worker said last of the world that it is in."""
        path = self.run.folder / f"{node}.lives"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[-1]) if lines else {"port": 0}

    def _leavers_gone(self) -> bool:
        return self.staying == self.alive


def port_of(round_: Round) -> int:
    return int(round_.store.rpartition(":")[2])


@pytest.mark.soak
@pytest.mark.parametrize("seed", chosen())
def test_a_random_sequence_ends_in_the_right_world(
    seed: int, etcd_cluster: EtcdCluster, tmp_path: Path
) -> None:
    with running(
        ",".join(etcd_cluster.endpoints),
        uuid.uuid4().hex,
        tmp_path,
        nnodes="1:3",
        flags=("--max-restarts", "1000"),
        script=(str(SCRIPT), str(tmp_path)),
    ) as run:
        sequence = Sequence(run, etcd_cluster, seed)
        run.wait(lambda s: s.round and s.round.phase == "started", "a first round")
        try:
            sequence.happen()
            round_ = sequence.comes_to_rest()
        except AssertionError as error:
            error.add_note(f"SEQUENCE_SEEDS={seed}: {'; '.join(sequence.told)}")
            raise
        for member in round_.members:
            life = sequence.life(member.node)
            assert (life["rank"], life["world"]) == (member.slot, round_.world_size)
            assert f"round {round_.number} (" in run.nodes[member.node].output
        (tmp_path / "stop").touch()
        run.wait(lambda s: s.job and s.job.state == "succeeded", "the end")
        for member in round_.members:
            assert run.nodes[member.node].wait() == 0
