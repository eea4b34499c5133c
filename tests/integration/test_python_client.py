"""`spotelastic.up` in plain Python programs: a cluster's whole life, and what is left of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotelastic.local import cloud

SCRIPT = Path(__file__).parents[1] / "support/scripts/train_small.py"
WRITES = """
import os, pathlib

pathlib.Path(os.environ["SPOTELASTIC_OUTPUT"], "best.txt").write_text("the best")
"""
CONFIG = """
import os
import sys
import time

import spotelastic
from spotelastic import client

before = dict(os.environ)


def config(name, least=1):
    return spotelastic.JobConfig(
        "train.py",
        args=["250", "0.04"],
        local=True,
        min=least,
        max=2,
        output=["out"],
        name=name,
        instance_types=["m5.large"],
    )


"""
TWICE = (
    CONFIG
    + """
def run(name):
    told = []
    cluster = spotelastic.up(config(name, least=2), on_update=told.append)
    assert cluster.status().state == "running"
    while cluster.status().step < 20:
        time.sleep(0.1)  # until both nodes hold a step that the one that is left can restore
    lost = cluster.interrupt(kind="loss")
    assert client.find(name).name == name
    assert [each.name for each in client.clusters()] == [name]
    last = cluster.wait(on_update=told.append, timeout=180)
    assert (last.state, last.step) == ("succeeded", 250)
    assert last.logged == {"lr": 0.001}
    logged = cluster.measured()["lr"]
    assert {each.value for each in logged} == {0.001}
    assert [each.at for each in logged] == sorted(each.at for each in logged)
    report = cluster.report()
    assert report.job.state == "succeeded"
    assert lost.node in {row.node for row in report.interruptions}
    assert len(cluster.curve()) >= 250
    events = [each for each in told if isinstance(each, client.Event)]
    stored = list(cluster.events())
    for each in events:
        stored.remove(each)  # each is told once
    restored = [each for each in cluster.events() if each.kind == "restored"]
    assert restored and all(min(each.data["seconds"].values()) > 0 for each in restored)
    (row,) = (each for each in report.interruptions if each.node == lost.node)
    measured = {row.source: row.restore_s}
    assert row.restores in ({}, measured), "none where the other node's workers kept their state"
    assert [each.kind for each in events].count("job") >= 1
    (first,) = (each for each in told if isinstance(each, client.FirstStep))
    assert any("begins at" in line.text for line in cluster.logs(rank=0))
    assert cluster.cost().name == name
    assert [each.path for each in cluster.files()] == ["out/best.txt"]
    assert cluster.fetch("out", to=f"{name}-fetched").files == 1
    with open(f"{name}-fetched/out/best.txt") as file:
        assert file.read() == "the best"
    try:
        cluster.fetch("out/other.txt")
    except client.UsageError as error:
        assert "out/other.txt is not kept" in str(error)
    dump = cluster.dump(file=f"{name}.tar.gz")
    assert dump.file == os.path.abspath(f"{name}.tar.gz")
    cluster.down()
    print(name, "is over")


for name in sys.argv[1:]:
    run(name)
assert dict(os.environ) == before, "boto3 of the program's own means what it meant before"
try:
    client.find(sys.argv[1], local=True)
except client.UsageError as error:
    assert "no local cloud is running" in str(error)
"""
)
STOPS = (
    CONFIG
    + """
with spotelastic.up(config("train")) as cluster:
    stopped = cluster.stop()
    assert (stopped.state, cluster.wait().state) == ("stopped", "stopped"), stopped
    assert cluster.restart(same_code=True).state not in ("stopped", "succeeded")
    assert cluster.scale(max=1).text
    last = cluster.wait()
    assert (last.state, last.step) == ("succeeded", 250), last
"""
)
WAITS = (
    CONFIG
    + """

cluster = spotelastic.up(config("train"), on_update=lambda update: print(update, flush=True))
print("it trains", flush=True)
cluster.wait()
"""
)


@contextmanager
def program(folder: Path, text: str, *args: str) -> Iterator["subprocess.Popen[str]"]:
    (folder / "train.py").write_text(WRITES + SCRIPT.read_text())
    (folder / "program.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "program.py", *args],
        cwd=folder,
        env=os.environ | {"SPOTELASTIC_HOME": str(folder.parent / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def whole(folder: Path, text: str, *names: str) -> None:
    with program(folder, text, *names) as process:
        told, complaint = process.communicate(timeout=280)
    assert process.returncode == 0, complaint
    assert told.splitlines() == [f"{name} is over" for name in names], "nothing else is printed"
    assert complaint == ""
    assert not (folder.parent / "home/local.json").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_program_brings_up_interrupts_waits_reports_and_takes_down(folder: Path) -> None:
    whole(folder, TWICE, "quokka")


@pytest.mark.soak
def test_a_program_does_so_twice(folder: Path) -> None:
    whole(folder, TWICE, "quokka", "wombat")


@pytest.mark.soak
def test_a_job_that_goes_on_after_a_stop_is_waited_for_to_its_new_end(folder: Path) -> None:
    whole(folder, STOPS)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("when", ["workers spotelastic-train", "it trains"])
def test_a_local_cluster_goes_with_its_program(
    folder: Path, when: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is brought up, and while it trains. The fixture of all tests looks what is left."""
    monkeypatch.setenv("SPOTELASTIC_HOME", str(folder.parent / "home"))
    with program(folder, WAITS) as process:
        assert process.stdout is not None
        assert any(when in line for line in process.stdout)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == -number
    assert number == signal.SIGKILL or complaint.endswith("KeyboardInterrupt\n")
    if number == signal.SIGINT:
        assert cloud.find() is None, "the program has waited for it"
