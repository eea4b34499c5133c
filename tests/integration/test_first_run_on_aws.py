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
from support.aws.first_run import LACKING, SPEND, emulated
from support.aws.launch_guard import ACTION, groups, guard
from support.aws.run_evidence import Evidence
from support.aws.run_report import page

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle

pytestmark = pytest.mark.soak  # the stages are run by hand

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


def test_one_page_has_times_costs_and_what_differs_from_the_emulation(tmp_path: Path) -> None:
    """Of a run in another account, which lacks the image of GPUs and has a smaller quota."""
    known, file = emulated(), tmp_path / "found.json"
    (launch,) = [each for each in known["0"]["checks"] if each == "launch c5.large spot"]
    told = json.loads(json.dumps(known))
    told["0"]["checks"][launch] = {
        "result": "FAILED", "why": "Traceback\nPendingVerification: wait", "after_s": 9.0
    }  # fmt: skip
    told["0"]["facts"]["vCPUs of Standard on demand"]["value"] = 5.0
    evidence = Evidence(file, "2")
    evidence.fact("cost", {"total_usd": 0.12})
    evidence.fact("seconds of each resource", {"Queue": 62.0})
    evidence.fact("events", [{"node": "i-1", "data": {"phases": {"machine": 400.0, "job": 9.0}}}])
    with evidence.check("it trains"):
        pass
    found = json.loads(file.read_text())
    found["stages"] = {**told, **found["stages"]}
    lines = page(found, known).splitlines()
    assert "0.12 USD by its own bill." in lines[2]
    assert "| 2 | 0.0 | 1 | 0 | 0 | 0.12 |" in lines
    between = lines[lines.index("## What AWS does otherwise than the emulation") + 2 :]
    assert between[: between.index("")] == [
        f"- stage 0, {launch}: FAILED, emulated passed. PendingVerification: wait",
        "- stage 0, vCPUs of Standard on demand: 5.0, emulated 100000.0",
        "- stage 2, boot of i-1, machine: 400 s, emulated 15 to 300 s",
    ]
    assert "| 2 | stack, Queue | 62 |" in lines and "| 2 | boot of i-1, job | 9 |" in lines
    found["stages"] = known
    assert "Nothing." in page(found, known)


def test_all_prices_are_told_first_and_nothing_is_made_without_an_answer() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "support.aws.first_run"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests", SPEND: ""},
        input="n\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert told.returncode != 0 and "nothing was made" in told.stderr
    before = told.stdout.partition("Go on?")[0]
    assert all(f"stage {stage}: " in before for stage in range(5))
    assert "in all about $3.75" in before
