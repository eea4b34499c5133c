"""The dashboard and the alerts that are shipped: all that they name is there."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from spotelastic.aws.base.infra_files import infra
from spotelastic.metrics import controller, job, node
from spotelastic.metrics.catalogue import EVERY, Metric
from spotelastic.model.headline import KINDS
from spotelastic.model.job import JobState

DECLARED = (controller, job, node)
"""Modules that declare metrics as they are imported."""
METRICS = {metric.full_name: metric for metric in EVERY}
OF_A_SCRAPE = {"cluster", "instance", "job"}
"""Labels that every sample has."""
BOARD: dict[str, Any] = json.loads(infra("monitoring/grafana.json").read_text())
PANELS = [each for each in BOARD["panels"] if each["type"] != "row"]
RULES = yaml.safe_load(infra("monitoring/alerts.yaml").read_text())["groups"][0]["rules"]
EXPRESSIONS = (
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(each["expr"] for each in BOARD["annotations"]["list"]),
    *(rule["expr"] for rule in RULES),
)


def selectors(expression: Any) -> Iterator[Any]:
    """All parts of an expression that name a metric."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
        return
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (part := getattr(expression, name, None)) is not None:
            yield from selectors(part)
    for part in getattr(expression, "args", ()):
        yield from selectors(part)


def grouped(expression: Any) -> Iterator[str]:
    """All labels by which an expression groups or joins."""
    modifier = getattr(expression, "modifier", None)
    yield from getattr(modifier, "labels", ())
    matching = getattr(modifier, "matching", None)
    yield from getattr(matching, "labels", ())
    for name in ("lhs", "rhs", "expr"):
        if (part := getattr(expression, name, None)) is not None:
            yield from grouped(part)
    for part in getattr(expression, "args", ()):
        yield from grouped(part)


def metrics(expression: str) -> list[tuple[Metric, Any]]:
    found = list(selectors(promql_parser.parse(expression)))
    assert found, expression
    return [(METRICS[each.name], each) for each in found]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_expression_names_metrics_and_labels_that_there_are(expression: str) -> None:
    known: set[str] = set()
    for metric, selector in metrics(expression):
        labels = {*metric.labels, *OF_A_SCRAPE}
        assert {each.name for each in selector.matchers.matchers} <= labels
        known |= labels
    assert set(grouped(promql_parser.parse(expression))) <= known


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_rates_are_of_counters_and_counters_are_not_shown_bare_but_for_sums(
    expression: str,
) -> None:
    for metric, _ in metrics(expression):
        of_a_time = any(f"{word}({metric.full_name}" in expression for word in ("rate", "increase"))
        sums = {"cost_dollars_total", "on_demand_cost_dollars_total"}
        assert of_a_time == (metric.kind == "counter") or metric.name in sums


def test_states_that_alerts_name_are_states_of_a_job() -> None:
    states = {
        state
        for rule in RULES
        for metric, selector in metrics(rule["expr"])
        if metric is job.STATE
        for each in selector.matchers.matchers
        if each.name == "state"
        for state in each.value.split("|")
    }
    assert states == {"failed", "pending", "running"} <= set(JobState.__args__)  # type: ignore[attr-defined]


def test_whatever_is_red_somewhere_has_an_alert() -> None:
    """What is wrong by the headline, or by a metric of its own."""
    own = {
        "failed": "SpotelasticJobFailed",
        "no-step": "SpotelasticDoesNotTrain",
        "short-of-nodes": "SpotelasticShortOfNodes",
        "no-controller": "SpotelasticControlPlaneIsGone",
        "slow-node": "SpotelasticSlowNode",
    }
    assert set(own.values()) <= {rule["alert"] for rule in RULES}
    told = {
        kind
        for rule in RULES
        for metric, selector in metrics(rule["expr"])
        if metric is job.HEADLINE
        for each in selector.matchers.matchers
        for kind in each.value.split("|")
    }
    told_elsewhere = {"timed-out", "steps-skipped", "warning"}  # yellow: messages and pages
    assert told | own.keys() | told_elsewhere == set(KINDS)


def test_most_of_what_there_is_is_shown() -> None:
    shown = {metric.name for each in EXPRESSIONS for metric, _ in metrics(each)}
    assert len(shown) > 30


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_says_what_happened_to_whom_and_what_to_do(rule: dict[str, Any]) -> None:
    told = rule["annotations"]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert "$labels.cluster" in told["summary"] and not told["summary"].endswith(".")
    assert told["description"].endswith(".")


def test_panels_have_titles_and_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        taken |= cells
    assert len({each["id"] for each in BOARD["panels"]}) == len(BOARD["panels"])
    assert len({each["title"] for each in PANELS}) == len(PANELS)
    assert all(each["description"].endswith(".") for each in PANELS)


def test_a_single_number_has_a_colour_only_where_it_means_something() -> None:
    """Grafana colours all that is above 80 red where nothing else is said."""
    for panel in (each for each in PANELS if each["type"] == "stat"):
        given = panel["fieldConfig"]["defaults"]
        is_fixed = given["color"]["mode"] == "fixed"
        assert is_fixed != ("thresholds" in given), panel["title"]
    (state,) = (each for each in PANELS if each["title"] == "State")
    assert state["options"]["textMode"] == "name", "the value is 1, whatever the state"
    colours = {
        name: override["properties"][0]["value"]["fixedColor"]
        for override in state["fieldConfig"]["overrides"]
        for name in JobState.__args__  # type: ignore[attr-defined]
        if re.search(override["matcher"]["options"].strip("/"), f"demo: {name}")
    }
    assert colours["failed"] == "red" and "running" not in colours and "succeeded" not in colours


def test_panels_go_by_the_chosen_source_and_clusters() -> None:
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all('cluster=~"$cluster"' in target["expr"] for target in panel["targets"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_own_tool_takes_the_alerts() -> None:
    command = ["promtool", "check", "rules", str(infra("monitoring/alerts.yaml"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
