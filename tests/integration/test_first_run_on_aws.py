"""The checks of a first run on AWS, as far as the emulated account can be asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.aws.account import REGION, account
from support.aws.account_checks import all_checks
from support.aws.cluster_requests import request
from support.aws.launch_guard import ACTION, groups, guard
from support.aws.run_evidence import Evidence

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle

pytestmark = pytest.mark.soak  # the stages are run by hand

LACKING = frozenset({"accessanalyzer", "events"})
"""Services that the emulated account does not have, or only in part."""
ROOT = Path(__file__).parents[2]


def test_a_stage_makes_nothing_and_tells_what_it_has_found(tmp_path: Path) -> None:
    file = tmp_path / "build" / "first-run.json"
    evidence = Evidence(file, "0", ("hunter22",))
    with account(tmp_path):
        aws = Aws(REGION)
        all_checks(aws, evidence, LACKING, ("g4dn.xlarge", "p6-b300.48xlarge"))
        assert aws.cloudformation.describe_stacks()["Stacks"] == []
        assert aws.ec2.describe_instances()["Reservations"] == []
    results = evidence.results()
    told = json.loads(file.read_text())["stages"]["0"]
    assert told["checks"].keys() == results.keys()
    not_there = {name for name, result in results.items() if result == "not there"}
    assert all(name.endswith((" is valid", "simulator", "its event")) for name in not_there)
    assert {name for name, result in results.items() if result == "FAILED"} == set()
    assert len(results) - len(not_there) > 25
    assert told["facts"]["image for GPUs"]["value"]["architecture"] == "x86_64"


def test_a_failed_check_is_noted_with_its_evidence_and_the_stage_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "first-run.json"
    first = Evidence(file, "0")
    with first.check("one"):
        pass
    evidence = Evidence(file, "1", ("hunter22",))

    def fails() -> None:
        raise OSError("gone")

    with evidence.check("two", stack=lambda: ["hunter22"], console=fails):
        raise ValueError("the password hunter22 is wrong")
    with evidence.check("three"):
        evidence.fact("pi", 3.14)
    assert evidence.results() == {"two": "FAILED", "three": "passed"}
    with pytest.raises(AssertionError, match="two: see"):
        evidence.finish()
    text = file.read_text()
    assert "hunter22" not in text
    stages = json.loads(text)["stages"]
    assert stages["0"]["checks"]["one"]["result"] == "passed"
    two = stages["1"]["checks"]["two"]
    assert two["evidence"] == {"stack": ["***"], "console": "could not be looked up: gone"}
    assert "the password *** is wrong" in two["why"]


def test_the_guard_empties_every_group_of_the_cluster(tmp_path: Path) -> None:
    with account(tmp_path):
        aws = Aws(REGION)
        lifecycle.create(request("quokka"), print, aws)
        guarded = guard(aws, "quokka", 4_000_000_000.0)
        assert set(guarded) == set(groups("quokka"))
        found = aws.autoscaling.describe_scheduled_actions()["ScheduledUpdateGroupActions"]
        ends = {
            each["AutoScalingGroupName"]: (each["MinSize"], each["MaxSize"])
            for each in found
            if each["ScheduledActionName"] == ACTION
        }
        assert ends == dict.fromkeys(guarded, (0, 0))


def test_the_stages_cost_nothing_unless_they_are_asked_for() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "aws", "-n", "0", "-q", "-rs", "tests/aws"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "SOAK_TURN"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert "passed" not in told.splitlines()[-1]
    for stage in range(5):
        assert f"stage {stage}" in told
