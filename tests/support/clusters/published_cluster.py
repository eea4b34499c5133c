"""What a cluster has published, for pages: a small job that was interrupted twice."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from spotelastic_checkpoints.catalog.catalog import StepEntry
from spotelastic_checkpoints.types import TimedValue

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.measured import GPU_MEMORY, GPU_USE
from spotelastic.model.progress import (
    Cost,
    Event,
    GpuUse,
    Interruption,
    NodeStatus,
    Point,
    Report,
    ReportJob,
    Status,
)
from spotelastic.web.view.published import PublishedCluster

BEGAN = 1_795_750_000.0
NOTICE = Interruption(
    InterruptionKind.SPOT_INTERRUPTION, "i-2", BEGAN + 40, 0.4, 60, True, 0.59, 0, "imds", usd=0.001
)
LOSS = Interruption(InterruptionKind.LOSS, "i-1", BEGAN + 70, 0.9, 90, False, 3.5, 8, "ec2")


def happened(after: float, what: str, node: str = "", /, message: str = "", **data: Any) -> Event:
    """An event so many seconds after the beginning."""
    return Event(BEGAN + after, what, message or f"{what} {node}", node, data)


def began(after: float, number: int, *members: str, step: int = 0) -> Event:
    """A round that has started."""
    return happened(
        after,
        "round",
        message=f"round {number} started: as it came",
        number=number,
        phase="started",
        members=list(members),
        step=step,
    )


EVENTS = (
    happened(0, "launch", "i-9", group="spotelastic-demo-control-a"),
    happened(1, "launch", "i-1", group="spotelastic-demo-workers"),
    happened(1, "launch", "i-2", group="spotelastic-demo-workers"),
    began(10, 1, "i-1", "i-2"),
    happened(30, "committed", "i-1", step=40),
    happened(36, "committed", "i-1", step=60),
    happened(40, "notice", "i-2", kind="spot_interruption"),
    happened(41, "launch", "i-3", group="spotelastic-demo-workers"),
    began(50, 2, "i-1", "i-3", step=60),
    happened(55, "terminate", "i-2"),
    happened(70, "loss", "i-1"),
    began(74, 3, "i-3", step=90),
)
STATUS = Status(
    name="demo",
    state="running",
    at=BEGAN + 100,
    round=3,
    step=120,
    loss=0.95,
    committed=60,
    step_time=0.25,
    reason="i-1 was lost: 1 node",
    nodes=(
        NodeStatus("i-3", "worker", "training", "us-east-1a", "10.0.0.3", (0, 1), "g5.xlarge"),
        NodeStatus("i-9", "control", "leading", "us-east-1b", "10.0.0.9"),
    ),
)
POINTS = tuple(
    Point(step, 3.0 - step / 100, BEGAN + 10 + index * 0.5)
    for index, step in enumerate([*range(1, 98), *range(90, 121)])
)
STARTS = (BEGAN + 10, BEGAN + 58.4)
"""When the rounds began that executed these: the second one 97 steps after the first."""
REPORT = Report(ReportJob("running", 120, 128), (NOTICE, LOSS), 0.911, 0.1, 0.02, 0.05)
COST = Cost("demo", 0.2, 0.02, 0.05, 0.1, 0.0, 0.001, total_usd=0.03, total_usd_per_hour=0.25)
CHECKPOINTS = (
    StepEntry(
        1, 40, "committed", False, False, 2, 900_000, datetime.fromtimestamp(BEGAN + 30, UTC)
    ),
    StepEntry(
        1,
        60,
        "committed",
        True,
        True,
        2,
        900_000,
        datetime.fromtimestamp(BEGAN + 36, UTC),
        datetime.fromtimestamp(BEGAN + 60, UTC),
    ),
)
PUBLISHED = PublishedCluster(STATUS, EVENTS, POINTS, REPORT, COST, CHECKPOINTS, "train.py", (1, 2))
"""Everything there is of a job that runs."""
NEW = PublishedCluster(Status("demo", "pending", BEGAN, reason="nodes are booting"))
"""What there is of a cluster whose control nodes boot."""


def with_texts(text: str) -> PublishedCluster:
    """The same, with a text of somebody else's wherever there can be one."""
    nodes = tuple(NodeStatus(text, role, text, text, text) for role in ("worker", "control"))
    row = replace(NOTICE, kind=InterruptionKind(text), node=text, told_by=text)
    return PublishedCluster(
        replace(STATUS, name=text, state=text, reason=text, nodes=nodes, quiet=text),
        (
            *(replace(each, node=text, message=text) for each in EVENTS),
            Event(BEGAN + 99, text, text, text, {"kind": text}),
        ),
        POINTS,
        replace(REPORT, interruptions=(row,)),
        replace(COST, name=text, prices_of=text),
        (StepEntry(1, 1, text),),
        text,
        (1, 2),
        (text,),
    )


def very_large() -> PublishedCluster:
    """10,000 events, 1,000 interruptions, 200 nodes with GPUs, 20,000 steps, logged values."""
    kinds = tuple(InterruptionKind)[:6]
    rows = tuple(
        replace(NOTICE, kind=kinds[n % 6], node=f"i-{n:017x}", at=BEGAN + n, source="memory")
        for n in range(1000)
    )
    use = GpuUse(8, 0.873, 549_755_813_888, 687_194_767_360)
    nodes = tuple(
        NodeStatus(
            f"i-{n:017x}",
            "worker",
            ("training", "waiting")[n % 50 == 0],
            "us-east-1a",
            "10.0.12.101",
            tuple(range(8 * n, 8 * n + 8)),
            "p4d.24xlarge",
            gpu=use,
        )
        for n in range(200)
    )
    members = [node.id for node in nodes]
    events: list[Event] = []
    for n in range(2000):
        at, node = n * 0.5, f"i-{n % 1000:017x}"
        events += [happened(at, "launch", node), happened(at + 0.1, "notice", node)]
        events += [happened(at + 0.2, "committed", node, step=n), happened(at + 0.3, "loss", node)]
        events += [began(at + 0.4, n, *members, step=n)]
    logged = tuple(TimedValue(BEGAN + 2.5 * n, n % 7 / 10) for n in range(400))
    return replace(
        PUBLISHED,
        status=replace(STATUS, nodes=nodes, at=BEGAN + 1000),
        events=tuple(events),
        points=tuple(Point(n, 3.0 + (n % 7) / 10, BEGAN + n / 20) for n in range(20_000)),
        report=replace(REPORT, interruptions=rows),
        rates=tuple((BEGAN + n, 0.1 * (n % 9)) for n in range(1000)),
        measured=dict.fromkeys(("lr", "grad_norm", "eval/loss", GPU_USE, GPU_MEMORY), logged),
    )
