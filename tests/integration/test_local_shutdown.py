"""How local instances end: in order where EC2 shuts them down, and else by a power cut."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from spotelastic_checkpoints import isolated
from support.clusters.local_cloud import Laptop, python, running_cloud, until
from support.processes.patience import PATIENT

from spotelastic.local.base.remains import Remains
from spotelastic.local.instances.power import Power

PUTS_AWAY = """
import os, pathlib, signal
from urllib.request import Request, urlopen

def end(*_):
    url = os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] + "/latest/api/token"
    ask = Request(url, method="PUT", headers={{"X-aws-ec2-metadata-token-ttl-seconds": "60"}})
    token = urlopen(ask, timeout=60).read()
    pathlib.Path({folder!r}, os.environ["SPOTELASTIC_INSTANCE"]).write_bytes(token)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    signal.pause()
"""
"""An instance that has something to do before it ends, for which it needs the cloud."""


def test_what_is_terminated_or_ends_with_its_cloud_puts_things_away_and_what_is_cut_off_does_not(
    tmp_path: Path,
) -> None:
    done = tmp_path / "done"
    done.mkdir()
    with running_cloud(tmp_path, python(PUTS_AWAY.format(folder=str(done)))) as info:
        laptop = Laptop(info)
        laptop.make_network()
        launched = laptop.ec2.run_instances(
            ImageId="ami-12345678", MinCount=4, MaxCount=4, SubnetId=laptop.subnets[0]
        )["Instances"]
        names = [instance["InstanceId"] for instance in launched]
        until(lambda: all("ready" in laptop.console(name) for name in names))
        cut, terminated, *left = names
        laptop.faults.kill(cut)
        laptop.ec2.terminate_instances(InstanceIds=[terminated])
        until(lambda: {laptop.state(name) for name in (cut, terminated)} == {"terminated"})
        assert [file.name for file in done.iterdir()] == [terminated]
    assert {file.name for file in done.iterdir()} == {terminated, *left}
    assert all(file.stat().st_size for file in done.iterdir())


AT_SIGTERM = """
import os, signal
signal.signal(signal.SIGTERM, {does})
print("up", flush=True)
while True:
    signal.pause()
"""


def test_instances_shut_down_side_by_side_and_one_that_does_not_is_cut_off(tmp_path: Path) -> None:
    (folder := tmp_path / "spotelastic-shutdown").mkdir()
    remains = Remains(str(folder), str(tmp_path / "record"))
    with subprocess.Popen(
        isolated.command("spotelastic.local.instances.hypervisor", remains.dumps()),
        env=isolated.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as hypervisor:
        assert hypervisor.stdin and hypervisor.stdout

        def order(**words: object) -> None:
            assert hypervisor.stdin
            hypervisor.stdin.write(json.dumps(words) + "\n")
            hypervisor.stdin.flush()

        def answer() -> object:
            assert hypervisor.stdout
            return json.loads(hypervisor.stdout.readline())

        for name in ("deaf", "heeds", "stubborn"):
            does = "lambda *_: os._exit(0)" if name == "heeds" else "signal.SIG_IGN"
            order(
                do="boot",
                instance=name,
                argv=[sys.executable, "-c", AT_SIGTERM.format(does=does)],
                env={"SPOTELASTIC_INSTANCE": name, "SPOTELASTIC_CLOUD": remains.cloud},
                cwd=str(tmp_path),
                console=str(tmp_path / name),
                shm=str(remains.shm / name),
                is_unit=False,
            )
            assert answer() == {"booted": name}
            until((tmp_path / name).exists)
            until((tmp_path / name).read_text)
        order(do="end", instance="stubborn", shm=str(remains.shm / "stubborn"), within=1e6)
        order(do="end", instance="heeds", shm=str(remains.shm / "heeds"), within=1e6)
        assert answer() == {"ended": "heeds"}
        order(do="end", instance="deaf", shm=str(remains.shm / "deaf"), within=0.1)
        assert answer() == {"ended": "deaf"}
        order(do="hasten", instance="stubborn")
        assert answer() == {"ended": "stubborn"}
        assert list(remains.shm.iterdir()) == []
        hypervisor.stdin.close()
    assert hypervisor.returncode == 0 and not folder.exists()


def test_nobody_waits_for_a_hypervisor_that_was_killed(tmp_path: Path) -> None:
    """It takes no order any more, though the kernel may still take what is written to it."""
    (folder := tmp_path / "spotelastic-killed").mkdir()
    lost = Event()
    others = set(children())
    power = Power(Remains(str(folder), str(tmp_path / "record")), ["sleep", "1000"], os.environ)
    (hypervisor,) = set(children()) - others
    power.on_lost = lost.set
    power.start()
    try:
        power.on("i-1", {}).result(PATIENT)
        os.kill(hypervisor, signal.SIGSTOP)
        ordered = power.shut_down("i-1")
        os.kill(hypervisor, signal.SIGKILL)
        assert isinstance(ordered.exception(PATIENT), BrokenPipeError)
        assert lost.wait(PATIENT) and not power.is_on
        with pytest.raises(BrokenPipeError, match="hypervisor has ended"):
            power.on("i-2", {})
    finally:
        power.close()
    assert not folder.exists()


def children() -> list[int]:
    return [*map(int, Path("/proc/thread-self/children").read_text().split())]
