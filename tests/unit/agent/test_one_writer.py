"""One writer of a node's state: `observe` folds events, and nothing else makes or changes one."""

import ast
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from spotelastic_checkpoints import messages
from spotelastic_checkpoints.types import Commit, StepPoint, WorkerStep
from support.simulation.node_state import changed, node_state

from spotelastic.agent import observe as observing
from spotelastic.agent.observe import after, observe
from spotelastic.agent.state import events, values
from spotelastic.agent.state.values import NEW, NodeState, Workers
from spotelastic.agent.state.worker_changes import GONE_WITHIN
from spotelastic.model.agreement import Vote
from spotelastic.model.gpu import GpuFault
from spotelastic.model.in_place import Standing
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.model.progress import GpuUse
from spotelastic.model.round import RoundEnd
from spotelastic.store.port import Compare

ROOT = Path(__file__).parents[3]
WRITERS = {
    "agent/observe.py",
    "agent/state/values.py",
    "agent/state/silence.py",
    "agent/state/worker_changes.py",
}
PARTS = {
    name
    for name, kind in vars(values).items()
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == values.__name__
}
MADE_BY_ACTIONS = {"RoundStore"}
"""What an event carries as a whole."""
BASES = (events.WorkersEvent, events.HealthEvent)
DAEMONS = tuple(each for each in get_args(messages.DaemonEvent) if each is not messages.SaveFailed)
"""What an agent folds of what its daemon says. A save that failed is only logged."""
OWN = (kind for base in (events.AgentEvent, *BASES) for kind in base.__subclasses__())
KINDS = (*(kind for kind in OWN if kind not in BASES), *DAEMONS)


# -- nobody else writes ---------------------------------------------------------------------------


def writers() -> Iterator[Path]:
    """The files that deal with a node's state: the agent, and what simulates one."""
    yield from (ROOT / "spotelastic/agent").rglob("*.py")
    yield from (ROOT / "benchmarks/light").glob("*.py")
    yield from (ROOT / "tests/support").glob("virtual*.py")


def writes(source: str) -> list[str]:
    """The places of a source that make a part of the state, or change a field of one."""
    found = []
    names = {each.name for part in PARTS for each in fields(getattr(values, part))}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)) if name in PARTS:
                if name not in MADE_BY_ACTIONS:
                    found.append(f"line {node.lineno} makes a {name}")
            case ast.Call(func=ast.Name("replace"), args=[first, *_]):
                path = ast.unparse(first)
                if (path.startswith("local") and path != "local.node") or path in STATES:
                    found.append(f"line {node.lineno} changes {path}")
            case ast.Attribute(value=ast.Name("local"), ctx=ast.Store()) if node.attr in names:
                found.append(f"line {node.lineno} sets {node.attr}")
            case ast.FunctionDef(returns=ast.Name("NodeState")) if not is_property(node):
                found.append(f"line {node.lineno}: {node.name} returns a state")
    return found


STATES = {"workers", "silence", "pace", "claim", "store", "opened", "membership", "state"}


def is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "property" for each in node.decorator_list)


def test_nothing_but_observe_makes_or_changes_a_state() -> None:
    files = [file for file in writers() if not any(str(file).endswith(each) for each in WRITERS)]
    assert len(files) > 30
    found = {str(file.relative_to(ROOT)): writes(file.read_text()) for file in files}
    assert not {file: places for file, places in found.items() if places}


def test_the_check_finds_what_it_looks_for() -> None:
    observing_source = Path(observing.__file__).read_text()
    assert len(writes(observing_source)) > 30
    assert writes("local = replace(local, workers=None)")
    assert writes("replace(local.reports, said=frozenset())")
    assert writes("workers = replace(workers, killed=True)")
    assert writes("values.Workers('r', 1, 0, 1, 0.0, frozenset())")
    assert writes("def do(local: NodeState) -> NodeState: ...")
    assert not writes("node = replace(local.node, daemon='a:1')")


# -- events are plain values ----------------------------------------------------------------------

NODE = Node("a", "inc", "10.0.0.1", "z", Fingerprint("3.11"), "a:1")
NOTICE = Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "imds", 1.0, 2.0, 120.0)
FAULT = GpuFault("Xid 79, the GPU has fallen off the bus", "kernel", "xid 79", "0000:1b:00", 79)
STEP = WorkerStep(0, 0, 7, 0.1, 1.0, 2.0, attached=True)
SAMPLES: dict[Any, Any] = {
    str: "r1/0",
    int: 3,
    float: 1.5,
    bool: True,
    float | None: 2.5,
    Fingerprint: NODE.fingerprint,
    Node: NODE,
    Notice: NOTICE,
    Compare: Compare("holder", "created", 4),
    values.RoundStore: values.RoundStore("r1", "store/r1", "a:2"),
    RoundEnd | None: RoundEnd("r1", 1.0, 7, 2.0),
    Vote: Vote("a", "p", 7, aimed=9, confirmed=9),
    Commit: Commit(1, 50),
    Commit | None: Commit(2, 60),
    frozenset[str]: frozenset({"r1/0", "r1/1"}),
    tuple[WorkerStep, ...]: (STEP,),
    tuple[StepPoint, ...]: (StepPoint(7, 0.5, 1.0),),
    tuple[int, ...]: (0, 1),
    Standing: Standing(6, "pending"),
    GpuFault: FAULT,
    GpuFault | None: FAULT,
    GpuUse | None: GpuUse(8, 0.9, 1 << 30, 2 << 30),
}


def sample(kind: Any) -> Any:
    """One event of a kind, each of its fields set."""
    return kind(**{name: SAMPLES[each] for name, each in get_type_hints(kind).items()})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_event_can_be_written_read_back_and_folded(kind: Any) -> None:
    event = sample(kind)
    again = msgspec.json.decode(msgspec.json.encode(event), type=kind)
    assert again == event
    assert type(again) is kind
    assert after.dispatch(kind) is not after.dispatch(object), "observe knows nothing of it"
    workers = Workers("r1", 1, 0, 1, 0.0, frozenset({"r1/0"}))
    running = node_state(node=NODE, workers=workers)
    for local in (NEW, running, changed(NEW, resting=values.RestingWorkers(workers))):
        assert observe(local, event, 5.0) == observe(local, again, 5.0)
    with pytest.raises(AttributeError):
        event.id = "other"


def test_a_state_can_be_written_and_read_back() -> None:
    """With the times of what never happens in it, which JSON has no number for."""
    running = Workers("r1", 1, 0, 1, 0.0, frozenset({"r1/0"}))
    for local in (NEW, changed(NEW, workers=running, vote=SAMPLES[Vote], notice=NOTICE)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(local), type=NodeState) == local


# -- what a simulation once set otherwise than the agent ------------------------------------------


def test_progress_is_told_again_under_a_new_lease() -> None:
    local = node_state(node=NODE, step=7, told_step=7)
    renewed = observe(local, events.Registered(NODE, renewed=True), 1.0)
    assert renewed.reports.told_step == -1
    assert observe(local, events.Registered(NODE), 1.0).reports.told_step == 7


def test_workers_that_are_killed_have_a_time_to_be_gone_by_unless_they_have_grace() -> None:
    local = node_state(workers=Workers("r1", 1, 0, 1, 0.0, frozenset({"r1/0"})))
    killed = observe(local, events.WorkersKilled(), 10.0).workers
    assert killed is not None and killed.killed
    assert (killed.kill_at, killed.gone_by) == (float("inf"), 10.0 + GONE_WITHIN)
    asked = observe(local, events.WorkersKilled(frozenset({"r1/0"}), 12.0), 10.0).workers
    assert asked is not None and asked.failing == {"r1/0"}
    assert (asked.kill_at, asked.gone_by) == (12.0, float("inf"))


def test_a_worker_that_had_ended_when_the_others_were_killed_has_failed() -> None:
    local = node_state(workers=Workers("r1", 1, 0, 1, 0.0, frozenset({"r1/0", "r1/1"})))
    local = observe(local, events.WorkersKilled(ended=frozenset({"r1/1"})), 10.0)
    local = observe(local, events.WorkersKilled(ended=frozenset({"r1/0", "r1/1"})), 10.5)
    for name in ("r1/0", "r1/1"):
        local = observe(local, events.Exited(name, -9), 11.0)
    workers = local.workers
    assert workers is not None and workers.fails_untold and not workers.alive
    assert [(each.local_rank, each.code) for each in workers.exits] == [(1, -9)]


def test_a_node_whose_store_went_back_registers_anew_and_lets_its_workers_train() -> None:
    running = Workers("r1", 1, 0, 1, 0.0, frozenset({"r1/0"}))
    local = node_state(node=NODE, registered=True, nodes_seen=True, workers=running)
    back = observe(local, events.StoreWentBack(), 1.0)
    assert back.node is None and not back.membership.registered
    assert back.workers == running


def test_what_comes_after_the_end_of_workers_changes_nothing() -> None:
    for event in (
        messages.Attached(0),
        messages.WorkerLeft(0, 7, clean=True),
        messages.Sealed(7, (0,), waiting=True),
        events.FailureReported(),
        events.Exited("r1/0", 1),
        events.StepsRead((STEP,)),
    ):
        assert observe(NEW, event, 1.0) == NEW
