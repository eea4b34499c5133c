"""What a rehearsal on a job's first node comes to: the node joins, or the job has failed.

The interpreter stands in for `spotelastic rehearse --json`, which runs for real in
`tests/integration/test_cli_up.py`.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.clusters.leading_controller import SPEC
from support.store.memory_store import MemoryStore

from spotelastic.bootstrap.first_rehearsal import rehearsed
from spotelastic.bootstrap.job_environment import World
from spotelastic.bootstrap.reports import BootReports
from spotelastic.controller.decisions.capacity import held_back
from spotelastic.model.job import Job, Settings
from spotelastic.model.progress import Event
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys

DIFFERENT = {
    "act": "stopped",
    "state": "different",
    "what": ["lr is 0.1 hunter2"],
    "cause": "no scheduler",
    "advice": "save it",
}
EQUAL = DIFFERENT | {"act": "killed", "state": "equal"}
ANSWERS = {
    "equal": (0, json.dumps({"rows": [EQUAL]}), ""),
    "different": (1, json.dumps({"rows": [EQUAL, DIFFERENT]}), "stopped"),
    "mistake": (2, "", "more\n" * 9 + "spotelastic: no such script: train.py\n"),
}


def on_a_node(folder: Path, answer: str) -> tuple[bool, BootReports, list[str]]:
    code, out, err = ANSWERS[answer]
    python = folder / "python"
    (folder / "out").write_text(out)
    (folder / "err").write_text(err)
    python.write_text(
        f"#!/bin/sh\necho \"$@\" > '{folder}/asked'\ncat '{folder}/out'\ncat '{folder}/err' >&2\n"
        f"exit {code}\n"
    )
    python.chmod(0o755)
    reports = BootReports(MemoryStore(lambda: 0.0), Keys(SPEC.run), "i-1")
    spec = replace(SPEC, script="train.py", args=("--epochs", "2"))
    joins = rehearsed(spec, folder, World(str(python), {}, ("hunter2",)), reports)
    events = [decode(each.data, Event) for each in reports.store.range(reports.keys.event())[0]]
    asked = "-m spotelastic rehearse --json train.py -- --epochs 2\n"
    assert (folder / "asked").read_text() == asked
    return joins, reports, [event.message for event in events]


def test_a_script_that_comes_back_lets_the_node_join(tmp_path: Path) -> None:
    joins, reports, told = on_a_node(tmp_path, "equal")
    assert joins
    assert told == [
        "i-1: rehearsing train.py --epochs 2 before other nodes are launched",
        "i-1: rehearsed train.py --epochs 2: interruptions change nothing",
    ]
    assert reports.store.get(reports.keys.job) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            "different",
            ("does not come back", "stopped: different; lr is 0.1 ***; no scheduler; save it"),
        ),
        ("mistake", ("could not be rehearsed: no such script: train.py",)),
    ],
)
def test_one_that_does_not_has_failed_before_it_began(
    tmp_path: Path, answer: str, words: tuple[str, ...]
) -> None:
    joins, reports, _ = on_a_node(tmp_path, answer)
    assert not joins
    value = reports.store.get(reports.keys.job)
    assert value is not None
    job = decode(value.data, Job)
    assert job.state == "failed"
    assert "--rehearse first: train.py --epochs 2 " in job.reason
    assert all(word in job.reason for word in words), job.reason
    assert "hunter2" not in job.reason and "killed" not in job.reason


@pytest.mark.parametrize(
    ("rehearse", "begun", "held"),
    [("first", False, True), ("first", True, False), ("auto", False, False)],
)
def test_other_nodes_wait_for_the_first_alone(rehearse: str, *, begun: bool, held: bool) -> None:
    assert held_back(Settings(1, 4, rehearse=rehearse), begun=begun) == held
