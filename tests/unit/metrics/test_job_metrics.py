"""What metrics tell of a job, from what its cluster publishes."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.repo.format_values import SPEC

from spotelastic.metrics import controller, exposition, job, node
from spotelastic.metrics.catalogue import EVERY, Metric, Sample
from spotelastic.metrics.job import PublishedFacts
from spotelastic.metrics.node import NodeFacts
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice
from spotelastic.model.progress import (
    Event,
    GpuUse,
    Interruption,
    NodeStatus,
    Progress,
    Report,
    ReportJob,
    SlowNode,
    Status,
    Upload,
)
from spotelastic.model.round import CAUSES

STATUS = Status(
    "demo",
    "running",
    1000.0,
    round=3,
    step=40,
    loss=2.5,
    world_size=4,
    committed=30,
    upload=Upload(38, 10, 30, 5.0),
    step_time=0.5,
    nodes=(
        NodeStatus("i-k", "control", "leading", "a", "10.0.0.1"),
        NodeStatus("i-a", "worker", "training", "a", "10.0.0.2"),
        NodeStatus("i-b", "worker", "training", "a", "10.0.0.3"),
        NodeStatus("i-c", "worker", "waiting", "a", "10.0.0.4"),
    ),
    messages={"handled": 2, "foreign": 1},
    short_since=900.0,
    slow=(SlowNode("i-b", "1", 990.0, 2.0, 0.5),),
    total=100,
    samples_per_second=64.0,
    pace=0.6,
    began_at=500.0,
    usd=1.6,
    usd_per_hour=0.9,
    logged={"lr": 0.1, "eval/loss": 2.0, "diverged": None},
)
REPORT = Report(
    ReportJob("running", 40, 44),
    (),
    goodput=0.9,
    node_hours=2.0,
    cost_usd=1.5,
    on_demand_usd=4.0,
    usd_per_hour=0.8,
    control_usd=0.1,
    control_usd_per_hour=0.06,
)


def started(number: int, cause: str, at: float = 0.0, source: str = "memory") -> Event:
    data = {"number": number, "phase": "started", "cause": cause, "from": source}
    return Event(at, "round", "", data=data)


def row(kind: InterruptionKind, node: str, **more: object) -> Event:
    known = Interruption(kind, node, 100.0, 0.5, 38, False, 4.0, 2, round=2, first_step_at=104.0)
    row = replace(known, **more)  # type: ignore[arg-type]
    data = {"id": f"{node} {row.at}", "interruption": msgspec.to_builtins(row)}
    return Event(110.0, "ledger", "", node, data)


SPOT, LOSS = InterruptionKind.SPOT_INTERRUPTION, InterruptionKind.LOSS
EVENTS = (
    started(1, "start", 10.0, "fresh"),
    replace(started(2, "drain", 101.0), data={"phase": "proposed", "cause": "drain"}),
    started(2, "drain", 101.0),
    Event(100.0, "notice", "", "i-d", {"kind": "spot_interruption", "source": "imds"}),
    Event(100.4, "notice", "", "i-d", {"kind": "spot_interruption", "source": "sqs"}),
    Event(100.0, "failure", "", "i-a"),
    Event(50.0, "launch", "", "", {"failed": True}),
    Event(51.0, "launch", "", "i-e"),
    Event(52.0, "boot", "", "i-f"),
    Event(53.0, "unhealthy", "", "i-g", {"kind": "unhealthy"}),
    Event(60.0, "committed", "", "i-a", {"epoch": 1, "step": 20, "at": 59.0}),
    Event(61.0, "committed", "", "i-b", {"epoch": 1, "step": 20, "at": 59.0}),
    Event(80.0, "committed", "", "i-a", {"epoch": 1, "step": 30, "at": 79.5}),
    row(SPOT, "i-d", usd=0.2, steps_lost=0),
)
FACTS = PublishedFacts("demo", STATUS, REPORT, EVENTS, SPEC)
NOTICE = Notice(SPOT, "i-a", "imds", 1.0, 2.0, 62.0)
PROGRESS = Progress(
    "i-a",
    3,
    41,
    1000.0,
    committed=30,
    upload=Upload(38, 1, 3, 2.0),
    step_time=0.5,
    stall=0.01,
    commit_time=3.0,
    at_risk=True,
    measured=1,
    own_time=0.4,
    waiting_time=0.1,
    gpu=GpuUse(2, 0.75, 10, 40),
)
NODE = NodeFacts("i-a", "a", "g5.xlarge", True, 2, True, NOTICE, False, PROGRESS)
CALLS = {("ec2", "ok"): 7, ("ec2", "busy"): 1}


def values(samples: Iterable[Sample], metric: Metric) -> dict[str, float]:
    return {",".join(each.labels): each.value for each in samples if each.metric == metric}


def of_events(*events: Event) -> list[Sample]:
    return list(job.samples(PublishedFacts("demo", events=events)))


def test_steps_that_were_made_again_are_counted_by_what_came_of_them() -> None:
    assert values(of_events(), job.REHEARSALS) == {"equal": 0, "noise": 0, "different": 0}
    told = [Event(1.0, "rehearsed", "", "i-a", {"outcome": each}) for each in ("equal", "odd")]
    expected = {"equal": 2, "noise": 0, "different": 0, "other": 1}
    assert values(of_events(told[0], *told), job.REHEARSALS) == expected


def test_every_declared_metric_is_made_and_no_other() -> None:
    made = {each.metric for each in (*controller.samples(CALLS, FACTS), *node.samples(NODE))}
    assert {metric.name for metric in made} == {metric.name for metric in EVERY}
    assert len(made) > 50


@pytest.mark.parametrize("metric", EVERY, ids=lambda each: each.name)
def test_names_and_helps_are_as_prometheus_wants_them(metric: Metric) -> None:
    assert re.fullmatch(r"spotelastic_[a-z]+(_[a-z]+)*", metric.full_name)
    assert metric.full_name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(count|sum|bucket|ms|minutes|hours|percent|kib|mib)(_|$)", metric.name)
    assert metric.help.endswith(".") and "\n" not in metric.help
    assert "cluster" not in metric.labels


def test_what_is_written_is_read_back_by_prometheus_own_parser() -> None:
    registry = exposition.registry(lambda: [("demo", controller.samples(CALLS, FACTS))])
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["spotelastic_job_step", (("cluster", "demo"),)] == 40
    key = (("cluster", "demo"), ("outcome", "busy"), ("service", "ec2"))
    assert found["spotelastic_cloud_calls_total", key] == 1
    assert len(found) > 80


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_own_tool_finds_nothing_wrong_with_the_page() -> None:
    every = [*controller.samples(CALLS, FACTS), *node.samples(NODE)]
    page = generate_latest(exposition.registry(lambda: [("demo", every)], process=True))
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_clusters_share_the_families_of_a_page() -> None:
    other = replace(FACTS, cluster="other")
    read = [(facts.cluster, job.samples(facts)) for facts in (FACTS, other)]
    families = list(exposition.SampleCollector(lambda: read).collect())
    assert len({family.name for family in families}) == len(families)
    step = next(family for family in families if family.name == "spotelastic_job_step")
    assert [sample.labels["cluster"] for sample in step.samples] == ["demo", "other"]


def test_a_page_is_in_the_form_that_its_scraper_takes() -> None:
    def read() -> list[tuple[str, Iterable[Sample]]]:
        return [("demo", job.samples(FACTS))]

    plain, plain_type = exposition.page(read)
    assert plain_type.startswith("text/plain") and b"# EOF" not in plain
    accepted = "application/openmetrics-text; version=1.0.0"
    open_metrics, open_type = exposition.page(read, accepted)
    assert open_type.startswith("application/openmetrics-text") and b"# EOF" in open_metrics
    assert b'spotelastic_job_step{cluster="demo"} 40.0' in plain
    assert b'spotelastic_job_step{cluster="demo"} 40.0' in open_metrics


def test_nodes_are_counted_by_role_and_state() -> None:
    found = values(job.samples(FACTS), job.NODES)
    assert found == {"control,leading": 1, "worker,training": 2, "worker,waiting": 1}


def test_what_a_script_logs_is_one_metric_with_its_names_as_labels() -> None:
    """Prometheus knows NaN, but a rule that compares would be silent: there is no sample."""
    assert values(job.samples(FACTS), job.LOGGED) == {"lr": 0.1, "eval/loss": 2.0}


def test_one_state_of_the_job_is_one() -> None:
    found = values(job.samples(FACTS), job.STATE)
    assert [state for state, value in found.items() if value] == ["running"]
    assert {"failed", "succeeded", "timed out"} <= found.keys()


def test_what_was_never_told_has_no_samples() -> None:
    told = {each.metric for each in job.samples(PublishedFacts("demo"))}
    assert told and all(metric.kind == "counter" for metric in told)
    bare = {each.metric for each in node.samples(NodeFacts("i-a"))}
    assert bare == {node.INFO, node.REGISTERED, node.WORKERS, node.DAEMON, node.SICK}


def test_a_controller_that_stands_by_keeps_silent_about_the_job() -> None:
    told = {each.metric for each in controller.samples(CALLS, None)}
    assert told == {controller.LEADS, controller.CALLS}


# -- counters ------------------------------------------------------------------------------------


def test_rounds_count_once_they_have_started_by_causes_that_are_known() -> None:
    found = values(of_events(*EVENTS, started(3, "another version's")), job.ROUNDS)
    assert {cause: n for cause, n in found.items() if n} == {"start": 1, "drain": 1, "other": 1}
    assert found.keys() > CAUSES, "they begin at 0"


def test_a_notice_that_two_observers_tell_counts_once() -> None:
    assert values(of_events(*EVENTS), job.NOTICED) == {"spot_interruption": 1, "unhealthy": 1}


def test_a_commit_that_two_nodes_tell_counts_once_and_the_newest_has_its_time() -> None:
    found = of_events(*EVENTS)
    assert values(found, job.COMMITS) == {"": 2}
    assert values(found, job.COMMIT_AT) == {"": 79.5}


def test_nodes_that_go_at_once_share_one_pause_and_are_two_interruptions() -> None:
    found = of_events(row(LOSS, "i-d", usd=0.3), row(SPOT, "i-e", steps_lost=0, usd=0.0))
    assert values(found, job.INTERRUPTIONS) == dict.fromkeys(job.KINDS, 0) | {"loss": 1, SPOT: 1}
    assert sum(values(found, job.PAUSES).values()) == 4.0
    assert values(found, job.REPEATED)["loss"] == 2


def test_pauses_one_after_the_other_are_added() -> None:
    again = row(LOSS, "i-e", at=200.0, round=3, first_step_at=205.0, pause_s=5.0)
    assert values(of_events(row(LOSS, "i-d"), again), job.PAUSES)["loss"] == 9.0


def test_nodes_that_never_trained_add_no_pause_to_each_other() -> None:
    idle = {"round": None, "first_step_at": None, "pause_s": 0.0, "steps_lost": 0}
    found = of_events(row(SPOT, "i-d", **idle), row(SPOT, "i-e", **idle))
    assert values(found, job.INTERRUPTIONS)[SPOT] == 2
    assert values(found, job.PAUSES)[SPOT] == 0.0


def test_resuming_takes_from_the_start_of_a_round_to_its_first_step() -> None:
    found = of_events(
        started(2, "drain", 101.0),
        row(SPOT, "i-d"),
        row(SPOT, "i-e"),
        started(3, "loss", 201.0, "store"),
        row(LOSS, "i-f", at=200.0, round=3, first_step_at=209.0),
        started(4, "arrival", 300.0),  # which no interruption has caused
    )
    assert values(found, job.RESUMES) == {"memory": 1, "store": 1}
    assert values(found, job.RESUME_SECONDS) == {"memory": 3.0, "store": 8.0}


def test_a_row_of_another_version_is_left_out() -> None:
    strange = Event(110.0, "ledger", "", "i-d", {"interruption": {"kind": "loss", "node": 5}})
    found = of_events(strange, row(LOSS, "i-e"))
    assert values(found, job.INTERRUPTIONS)["loss"] == 1


def test_a_kind_of_another_version_is_one_label_more() -> None:
    new = row(InterruptionKind("solar_flare"), "i-d")
    other = row(InterruptionKind("meteorite"), "i-e", at=200.0)
    told = Event(1.0, "notice", "", "i-d", {"kind": "solar_flare"})
    found = of_events(new, other, told)
    assert values(found, job.INTERRUPTIONS)["other"] == 2
    assert values(found, job.NOTICED) == {"other": 1}


def test_counters_never_go_back_while_events_come() -> None:
    before: dict[tuple[str, tuple[str, ...]], float] = {}
    for count in range(len(EVENTS) + 1):
        now = {
            (each.metric.name, each.labels): each.value
            for each in of_events(*EVENTS[:count])
            if each.metric.kind == "counter"
        }
        assert all(now[key] >= value for key, value in before.items())
        before = now


def test_the_first_certificate_counts() -> None:
    assert values(job.samples(FACTS), job.CERTIFICATES) == {"": SPEC.validity.certificates}
