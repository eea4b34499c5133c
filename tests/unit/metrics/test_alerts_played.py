"""Which alerts there are in the course of a job, as Prometheus' own tool finds from its series.

promtool comes with Prometheus (Debian, Ubuntu: the package prometheus).
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spotelastic.aws.base.infra_files import infra

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)
CRITICAL, WARNING = "critical", "warning"


def its(metric: str, values: str, instance: str = "a", **labels: str) -> dict[str, str]:
    """The series of a metric of the cluster `c`, a value for each half minute."""
    every = {"cluster": "c", "instance": instance, **labels}
    shown = ", ".join(f'{name}="{value}"' for name, value in every.items())
    return {"series": f"spotelastic_{metric}{{{shown}}}", "values": values}


def states(values: str, instance: str = "a", **of: str) -> list[dict[str, str]]:
    """The states of a job, of which one is 1 and all others are 0."""
    never = re.sub(r"\b1x", "0x", values)
    return [
        its("job_state", of.get(state, never), instance, state=state)
        for state in ("pending", "running", "failed", "succeeded", "stopped", "timed out")
    ]


def training(until: int, instance: str = "a") -> list[dict[str, str]]:
    """What a leader says of a job that trains for so many half minutes, and is silent then."""
    return [
        *states(f"1x{until} stale", instance, running=f"1x{until} stale"),
        its("status_timestamp_seconds", f"0+30x{until} stale", instance),
        its("controller_leads", f"1x{until} stale", instance),
        its("job_commit_timestamp_seconds", f"0+30x{until} stale", instance),
        its("cost_dollars_total", f"0+0.1x{until} stale", instance, kind="spot"),
        its("cost_limit_dollars", f"1000x{until} stale", instance),
    ]


def nodes(until: int) -> list[dict[str, str]]:
    """What a worker says as long."""
    return [
        its("node_registered", f"1x{until} stale", "n"),
        its("steps_total", f"0+30x{until} stale", "n"),
    ]


def taken_over() -> list[dict[str, str]]:
    """Instance b leads after half an hour, and says what a has said."""
    return [
        *states("1x60 stale", running="1x60 stale"),
        *states("_x61 1x240", "b", running="_x61 1x240"),
        its("status_timestamp_seconds", "0+30x60 stale"),
        its("status_timestamp_seconds", "_x61 1830+30x240", "b"),
        its("controller_leads", "1x60 0x240"),
        its("controller_leads", "0x60 1x240", "b"),
        its("job_commit_timestamp_seconds", "_x61 1830+30x240", "b"),
    ]


def ended(state: str) -> list[dict[str, str]]:
    """The job ends after half an hour, and its cluster ten minutes later."""
    return [
        *states("1x80 stale", **{"running": "1x60 0x19 stale", state: "0x60 1x19 stale"}),
        its("status_timestamp_seconds", "0+30x80 stale"),
        its("controller_leads", "1x80 stale"),
    ]


def over_budget() -> list[dict[str, str]]:
    return [*training(300)[:-1], its("cost_limit_dollars", "20x300"), *nodes(300)]


STORIES: dict[str, tuple[list[dict[str, str]], dict[str, dict[str, str]]]] = {
    # the series, and which alerts there are when
    "it trains": ([*training(2000), *nodes(2000)], {"1h": {}, "16h": {}}),
    "another leads": ([*taken_over(), *nodes(300)], {"20m": {}, "32m": {}, "2h": {}}),
    "it fails at night, and its cluster ends": (
        ended("failed"),
        {"29m": {}, "32m": {"JobFailed": CRITICAL}, "8h": {"JobFailed": CRITICAL}, "26h": {}},
    ),
    "it succeeds, and its cluster ends": (ended("succeeded"), {"32m": {}, "50m": {}, "3h": {}}),
    "it fails, and goes on under the same leader": (
        [
            *states("1x300", running="1x60 0x40 1x200", failed="0x60 1x40 0x200"),
            its("status_timestamp_seconds", "0+30x300"),
            its("controller_leads", "1x300"),
        ],
        {"50m": {"JobFailed": CRITICAL}, "70m": {}},
    ),
    "it fails, and goes on as a new cluster": (
        [
            *ended("failed"),
            *states("_x121 1x60", "b", running="_x121 1x60"),
            its("status_timestamp_seconds", "_x121 3630+30x60", "b"),
            its("controller_leads", "_x121 1x60", "b"),
        ],
        {"50m": {"JobFailed": CRITICAL}, "70m": {}},
    ),
    "all control nodes go": (
        [*training(60), *nodes(200)],
        {"30m": {}, "40m": {"ControlPlaneIsGone": CRITICAL, "NothingAnswers": CRITICAL}},
    ),
    "all nodes go": (
        [*training(60), *nodes(60)],
        {"30m": {}, "40m": {"NothingAnswers": CRITICAL}, "3h": {}},
    ),
    "nobody leads": (
        [*training(60)[:-4], its("controller_leads", "1x60 0x60"), *nodes(120)],
        {"30m": {}, "33m": {"NobodyLeads": CRITICAL}},
    ),
    "it hangs": (
        [*training(300), nodes(300)[0], its("steps_total", "0+30x60 1800x240", "n")],
        {"40m": {}, "1h": {"DoesNotTrain": WARNING}},
    ),
    "it costs nearly all that it may": (
        over_budget(),
        {"79m": {}, "85m": {"Budget": WARNING}},
    ),
}


def played(series: list[dict[str, str]], times: dict[str, dict[str, str]]) -> dict[str, Any]:
    """A test of promtool's."""
    checks = [
        {
            "eval_time": at,
            "expr": 'count by (alertname, cluster, severity) (ALERTS{alertstate="firing"})',
            "exp_samples": [
                {
                    "labels": f'{{alertname="Spotelastic{name}", cluster="c", severity="{level}"}}',
                    "value": 1,
                }
                for name, level in expected.items()
            ],
        }
        for at, expected in times.items()
    ]
    return {"interval": "30s", "input_series": series, "promql_expr_test": checks}


@pytest.mark.parametrize("story", STORIES)
def test_alerts_come_when_something_is_wrong_and_at_no_other_time(
    story: str, tmp_path: Path
) -> None:
    file = tmp_path / "story.json"  # which is YAML, too
    tests = [played(*STORIES[story])]
    rules = [str(infra("monitoring/alerts.yaml"))]
    file.write_text(json.dumps({"rule_files": rules, "evaluation_interval": "30s", "tests": tests}))
    command = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
