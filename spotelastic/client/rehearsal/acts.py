"""The acts of a script that has a Checkpointer, each compared with a plain run."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from itertools import pairwise

from spotelastic.client.rehearsal import answer, compare, rehearsal_plan, runs
from spotelastic.client.rehearsal.answer import CauseFacts, RehearsalAnswer, Row
from spotelastic.client.rehearsal.changing import Changing
from spotelastic.client.rehearsal.nodes import Launch, TooLong
from spotelastic.client.rehearsal.records import SeenSteps, StepRecord
from spotelastic.client.rehearsal.runs import Played, Runs, Until
from spotelastic.model.in_place import SCHEDULER

SMALL = 1e-9
"""Noise below which two runs are equal."""
PACE = 0.4
"""Seconds that a step takes at least while nodes come and go, in loops that new processes go on
with.
"""
STORED = "what is stored, read by torch.distributed.checkpoint"

Act = Callable[[], list[Row]]


class Acts:
    """All acts of one rehearsal."""

    def __init__(self, runs: Runs, plain: Played, again: Played, *, is_over: bool) -> None:
        """`plain` and `again` are two runs without interruptions.

        `is_over`: they ended by themselves. Then the acts make a step less, and wait there: ranks
        that come to the end meet nobody who is about to join.
        """
        self._runs, self._plain, self._again = runs, plain, again
        record = plain.record
        self._is_over = is_over
        self._plan = rehearsal_plan.made(record.last - is_over, record.epoch)
        self._noise = compare.noise(record, again.record)
        self._carried = compare.carried(record, again.record)
        self._lost: dict[str, compare.StepDifference] = {}

    def play(self, pool: Executor) -> RehearsalAnswer:
        """Play all acts, and return what came of them."""
        rows = [pool.submit(self._guarded, name, act) for name, act in self._acts()]
        told = (self._twice(), *(row for each in rows for row in each.result()))
        came_back = compare.counters(self._plain.record) - self._lost.keys()  # a step's number
        unsaved = {name: kind for name, kind in self._carried.items() if name not in came_back}
        variables = answer.variables_told(unsaved, [*self._lost.values()])
        return answer.whole(self._runs.job, self._runs.ranks, self._plain, told, variables)

    def _acts(self) -> Iterator[tuple[str, Act]]:
        """Yield the acts that are wanted. Those that take longest come first.

        One that is not possible has no name, and tells why.
        """
        job, epoch, last = self._runs.job, self._plain.record.epoch, self._plan.last
        only = job.only or rehearsal_plan.ACTS
        is_further = epoch > last and not self._is_over
        further = f"--steps {epoch + rehearsal_plan.FEWEST}" if is_further else ""
        if "nodes" in only and self._runs.ranks > 1 and self._runs.has_gpus_for(3):
            yield "nodes go and come", self._changed
        elif "nodes" in only:
            yield _untried("nodes go and come", "it takes a process group, and 3 GPUs if any")
        if "stopped" in only:
            yield "stopped, and started again", self._stopped
        if "stopped" in only and epoch and not self._plan.epoch:
            why = further or "the script ends with it: give it arguments for more"
            yield _untried(f"stopped after step {epoch}, at an epoch's end", why)
        if "killed" in only:
            yield "a worker killed in each stage of a step", self._killed
        made = rehearsal_plan.lengths(job.args, job.source, self._plan, job.more)
        if "longer" in only and made is not None:
            yield "made longer after its end", lambda: self._longer(made)
        elif "longer" in only:
            yield _untried("ended, and then made longer", further or '--more "--epochs 4"')

    def _guarded(self, name: str, act: Act) -> list[Row]:
        if name:
            self._runs.say(name)
        try:
            return act()
        except TooLong as error:
            return [Row(name, "failed", what=(str(error),))]

    # -- judging ----------------------------------------------------------------------------------

    def _judge(
        self,
        act: str,
        played: Played,
        steps: tuple[int, int],
        *,
        restarts: bool = True,
        plain: StepRecord | None = None,
        found: list[compare.StepDifference] | None = None,
        equal: answer.State = "equal",
    ) -> Row:
        """Return the row of an act for some of its steps.

        `found` is what differs; where it is not given, the ranks are as many as in the plain run.
        """
        plain = plain or self._plain.record
        if found is None:
            found = compare.differences(plain, played.record.lines, self._noise)
            equal = "noise" if self._noise.largest > SMALL else "equal"
        lost = compare.lost(plain, played.record.lines, self._carried)
        for each in lost:
            self._lost.setdefault(each.name, each)
        # On what a scheduler says training depends, in steps that are not made here, too.
        trains = (each for each in lost if self._carried[each.name] == SCHEDULER)
        found = sorted((*found, *trains), key=lambda each: each.step)
        facts = CauseFacts.of(plain, self._runs.job.source, self._plain.files, restarts=restarts)
        row = answer.judged(act, found, steps, lost, facts, equal)
        if row.state == equal and played.failed:
            return Row(act, "failed", played.record.last, (played.failed,))
        return row

    def _twice(self) -> Row:
        act = "nothing: two plain runs"
        if self._again.failed:
            return Row(act, "failed", what=(self._again.failed,))
        sizes = {name: size for name, size in self._noise.names.items() if size is not None}
        if self._noise.largest <= SMALL:
            return Row(act, "equal")
        worst = max(sizes, key=lambda name: sizes[name])
        told = f"{compare.named(worst)} differs by {sizes[worst]:.2g} of its change"
        return Row(act, "noise", what=(told, "no act can tell what is smaller than that"))

    # -- acts -------------------------------------------------------------------------------------

    def _stopped(self) -> list[Row]:
        """Stop in mid-epoch and at an epoch's end, and each time go on as a new node would."""
        made = self._plan
        stops = {made.stop: f"stopped after step {made.stop}, and started on a new node"}
        if made.epoch:
            stops[made.epoch] = f"the same after step {made.epoch}, at an epoch's end"
        record, failed = StepRecord(), ""
        for number, step in enumerate((*sorted(stops), 0)):
            name, orders = f"stopped-{number}", {"steps": made.last, "gates": [step]}
            launch = self._runs.launch(
                name, storage="stopped", every=step, orders=orders, seed=1 + number
            )
            played = self._runs.run(launch, self._is_committed(launch, step) if step else None)
            record, failed = StepRecord((*record.lines, *played.record.lines)), played.failed
            if failed or (step and played.ended):
                break
        whole, begins = Played(record, failed), sorted(stops)
        steps = pairwise([0, *begins[1:], made.last])
        rows = [
            self._judge(stops[step], whole, (before + 1, end))
            for step, (before, end) in zip(begins, steps, strict=True)
        ]
        return [*rows, self._stored(begins[0])]

    def _is_committed(self, launch: Launch, step: int) -> Until:
        def committed(seen: SeenSteps) -> bool:
            return seen.reached(step, self._runs.ranks) and runs.committed(launch) >= step

        return committed

    def _stored(self, step: int) -> Row:
        """Have stock torch read what was stored, and compare that with the plain run."""
        storage = self._runs.base / "stopped" / "storage"
        folders = [each.parent for each in storage.glob(f"*/step-{step:08d}/.metadata")]
        if not folders:
            return Row(STORED, "failed", what=(f"step {step} was not committed",))
        told = runs.read_by_torch(folders[-1:])[str(folders[-1])]
        if "error" in told:
            return Row(STORED, "failed", what=(told["error"],))
        ours = self._plain.record.by_place("ended")[0, step].digests
        other = [
            f"{name} differs"
            for name, digest in told.items()
            if ours.get(name, digest) != digest
            and compare.is_alike(ours[name], digest)  # of what is sharded this is all of it
            and name not in self._noise.names
        ]
        return Row(STORED, "different", step, tuple(other[:3])) if other else Row(STORED, "equal")

    def _killed(self) -> list[Row]:
        """Kill a worker in each stage, on two nodes where there are two ranks."""
        made = self._plan
        nodes = 2 if self._runs.ranks == 2 and self._runs.has_gpus_for(2) else 1
        launch = self._runs.launch(
            "killed",
            nodes=str(nodes),
            workers=self._runs.ranks // nodes,
            restarts=2 * len(made.kills) + 3,  # else a script that fails by itself takes long
            orders={
                "steps": made.last,
                "dies": made.kills,
                "draws": str(self._plain.folder),
            },
        )
        played = self._runs.run(launch, nodes=nodes)
        steps = pairwise([1, *(step for step, _ in made.kills[1:]), made.last + 1])
        return [
            self._judge(
                f"a worker killed {rehearsal_plan.STAGES[stage]}",
                played,
                (begin, end - 1),
                restarts=False,
            )
            for (_, stage), (begin, end) in zip(made.kills, steps, strict=True)
        ]

    def _changed(self) -> list[Row]:
        """Kill a node, let two come, and let one leave with a notice."""
        made, plain = self._plan, self._plain.record
        gates = [1, made.loses, *made.comes, made.leaves]
        orders = {"steps": made.last, "gates": gates, "pace": PACE}
        launch = self._runs.launch("changed", nodes="1:3", workers=1, restarts=100, orders=orders)
        played = Changing(self._runs, launch).play(made)
        # Three ranks need not share a batch evenly, which shows as much as rounding does.
        three = self._runs.plain("three", 3, steps=made.last).record
        allowed = compare.tolerance(plain, three)
        found = compare.of_other_ranks(plain, three, played.record.lines, allowed)
        equal: answer.State = "restored" if allowed is None else "rounding"
        if compare.is_exact(plain, three):
            equal = "equal"
        acts = (
            ("a node comes: 2 ranks", (1, made.loses)),
            ("a node killed: 1 rank is left", (made.loses + 1, made.comes[0])),
            ("two nodes come: 3 ranks", (made.comes[0] + 1, made.leaves)),
            ("a node leaves with a notice: 2 ranks", (made.leaves + 1, made.last)),
        )
        return [
            self._judge(act, played, steps, restarts=False, found=found, equal=equal)
            for act, steps in acts
        ]

    def _longer(self, made: rehearsal_plan.Lengths) -> list[Row]:
        """End a shorter run, and go on with more steps."""
        act, last = f"ended ({made.told}), and then made longer", self._plain.record.last

        def leg(number: int, args: tuple[str, ...]) -> Played:
            name, orders = f"longer-{number}", {"steps": last}
            return self._runs.run(
                self._runs.launch(name, storage="longer", args=args, orders=orders, seed=1 + number)
            )

        short = leg(0, made.short)
        if short.failed:
            return [Row(act, "failed", what=(short.failed,))]
        if not short.ended:
            return [Row(act, "not compared", what=(f"it does not end by step {last}: --steps",))]
        plain = self._plain.record
        if made.long != self._runs.job.args:
            plain = self._runs.plain("long", self._runs.ranks, args=made.long, steps=last).record
        if found := compare.differences(plain, short.record.lines, self._noise):
            why = f"a shorter run trains otherwise since step {found[0].step}: {found[0]}"
            return [Row(act, "not compared", what=(why,))]
        steps = (short.record.last + 1, plain.last)
        return [self._judge(act, leg(1, made.long), steps, plain=plain)]


def _untried(act: str, why: str) -> tuple[str, Act]:
    return "", lambda: [Row(act, "not tried", what=(why,))]
