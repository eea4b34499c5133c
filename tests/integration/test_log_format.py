"""What an agent and its daemon log: with `--log-format json` one complete record each."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes.patience import PATIENT

SCRIPT = """
import logging, os, sys
ours = [logging.getLogger(name).handlers for name in ("spotelastic", "spotelastic_checkpoints")]
print("worker", logging.getLogger().handlers, ours, logging.getLogger("spotelastic").propagate)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
"""


@pytest.mark.soak
def test_every_line_of_an_agent_and_its_daemon_is_a_record_with_node_and_round(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "spotelastic", "run", "--standalone", "--node-id", "n0"]
    done = subprocess.run(
        [*command, "--log-format", "json", "--log-level", "debug", "--log-dir", "logs", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = records(done.stderr)
    assert {each["node"] for each in told if each["round"]} == {"n0"}
    rounds = {each["round"]: each["cause"] for each in told if each["round"]}
    assert rounds == {1: "start", 2: "worker"}
    (failed,) = [each for each in told if each["level"] == "error"]
    assert (failed["message"], failed["round"]) == ("rank 0: SystemExit: 3", 1)
    assert failed["logger"] == "spotelastic.agent.executor"
    assert any(each["level"] == "debug" for each in told)
    daemon = records((tmp_path / "logs" / "n0" / "logs" / "daemon.log").read_text())
    assert [each["round"] for each in daemon if "begins" in each["message"]] == [1, 2]
    assert {each["node"] for each in daemon} == {"n0"}
    workers = [line for line in done.stdout.splitlines() if "worker" in line]
    assert [line.partition("worker ")[2] for line in workers] == ["[] [[], []] True"] * 2


def test_an_error_that_ends_the_command_is_a_record_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spotelastic", "run", "--log-format", "json", "none.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENT, check=False
    )
    assert done.returncode == 2
    (told,) = records(done.stderr)
    assert told["level"] == "error" and "none.py" in told["message"]


def records(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    fields = {"time", "level", "logger", "message", "node", "round", "cause"}
    assert found and all(set(each) - {"exception"} == fields for each in found)
    return found
