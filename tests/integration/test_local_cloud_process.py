"""The local cloud as a process: it starts, is found, ends, and leaves nothing, however it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.clusters.local_cloud import Laptop, environment, python, running_cloud, until
from support.processes.patience import PATIENT

from spotelastic.cli.main import main
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.local import cloud
from spotelastic.local.base import processes
from spotelastic.local.cloud import CloudInfo

STARTER = """
import json, sys, time
from dataclasses import asdict
from spotelastic.local import cloud

boot = ("/bin/sh", "-c", "sleep 1000 & exec sleep 1000")
info = cloud.start(detach=sys.argv[1] == "detach", boot_command=boot)
print(json.dumps(asdict(info)), flush=True)
sys.stdin.read()
"""

SHEDDING = """
import os, subprocess, sys, time
child = [sys.executable, "-c", "import time; time.sleep(1000)"]
subprocess.Popen(child, start_new_session=True)
subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & sleep 1000 &"])  # orphans
print("at", os.environ["AWS_ENDPOINT_URL"], os.getcwd(), sorted(os.environ), flush=True)
time.sleep(1000)
"""


USER_DATA = """
import os
from urllib.request import Request, urlopen
url = os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] + "/latest/"
ask = Request(url + "api/token", method="PUT")
ask.add_header("X-aws-ec2-metadata-token-ttl-seconds", "60")
token = urlopen(ask, timeout=60).read().decode()
headers = {"X-aws-ec2-metadata-token": token}
exec(urlopen(Request(url + "user-data", headers=headers), timeout=60).read())
"""
"""Boots an instance as cloud-init does: it runs what it is given as user data, in Python."""


def launch(laptop: Laptop, count: int = 1, user_data: str = "") -> list[str]:
    """Bare instances; returns when they run."""
    if not laptop.subnets:
        laptop.make_network()
    launched = laptop.ec2.run_instances(
        ImageId="ami-12345678",
        MinCount=count,
        MaxCount=count,
        SubnetId=laptop.subnets[0],
        UserData=user_data,
    )["Instances"]
    names = [instance["InstanceId"] for instance in launched]
    until(lambda: all(laptop.state(name) == "running" for name in names))
    return names


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def laptop(home: Path) -> Iterator[Laptop]:
    with running_cloud(home, python(USER_DATA)) as info:
        yield Laptop(info)


def remains(info: CloudInfo) -> list[object]:
    """What is still there of a cloud; zombies of this process do not count."""
    memory = Path("/dev/shm", f"spotelastic-{info.id}")
    folders = [path for path in (memory, Path(info.folder)) if path.exists()]
    living = [info.pid] if processes.started_at(info.pid) == info.started else []
    return [*processes.marked(info.id), *folders, *living]


def starter(home: Path, how: str) -> tuple["subprocess.Popen[str]", CloudInfo]:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPOTELASTIC_HOME": str(home)},
    )
    assert process.stdout
    values = json.loads(process.stdout.readline())
    return process, CloudInfo(**{**values, "zones": tuple(values["zones"])})


def reap(process: "subprocess.Popen[str]") -> None:
    process.wait(PATIENT)
    for pipe in (process.stdin, process.stdout):
        assert pipe
        pipe.close()


def test_what_a_terminated_instance_started_ends_with_it(laptop: Laptop) -> None:
    (name,) = launch(laptop, user_data=SHEDDING)
    found = until(lambda: seen if len(seen := laptop.faults.processes(name)) == 4 else None)
    line = until(lambda: laptop.console(name))
    assert line.startswith(f"at {laptop.info.endpoint} {laptop.info.folder}/instances/{name}/home")
    assert "AWS_ACCESS_KEY_ID" not in line
    terminate(laptop, name)
    assert found is not None
    assert not any(processes.started_at(process.pid) for process in found)


def test_an_instance_whose_boot_process_ends_keeps_running(laptop: Laptop) -> None:
    (name,) = launch(laptop, user_data="raise SystemExit(3)")
    until(lambda: "exited with 3" in laptop.console(name))
    assert laptop.state(name) == "running"
    terminate(laptop, name)


def test_a_boot_that_fails_is_started_again_as_by_systemd(tmp_path: Path) -> None:
    with running_cloud(tmp_path, cloud.BOOT) as info:
        laptop = Laptop(info)
        laptop.make_network()
        (name,) = launch(laptop)  # which has none of the tags that a node needs
        until(lambda: laptop.console(name).count("exited with") >= 2)
        assert laptop.state(name) == "running"
        terminate(laptop, name)
        until(lambda: laptop.state(name) == "terminated")
        assert not processes.marked(info.id, name)


@pytest.mark.soak
def test_a_boot_that_is_killed_is_started_again_as_by_systemd(tmp_path: Path) -> None:
    """As by the kernel, where memory has run out. A cluster's control plane comes back."""
    with running_cloud(tmp_path, cloud.BOOT) as info:
        laptop = Laptop(info)
        laptop.make_network()
        (name,) = launch(laptop)

        def killed() -> bool:
            for process in laptop.faults.processes(name):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            return f"exited with {-signal.SIGKILL}" in laptop.console(name)

        until(killed)
        until(lambda: laptop.faults.processes(name))
        assert laptop.state(name) == "running"
        terminate(laptop, name)
        assert not processes.marked(info.id, name)


def test_when_an_instance_is_terminated_its_work_has_ended(laptop: Laptop) -> None:
    """No process of it can do anything any more when EC2 says so."""
    (name,) = launch(laptop, user_data="import time\nwhile True: print(time.time(), flush=True)")
    until(lambda: laptop.console(name))
    laptop.faults.kill(name)
    until(lambda: laptop.state(name) == "terminated")
    last = laptop.console(name)
    assert not processes.marked(laptop.info.id, name)
    assert laptop.console(name) == last


def terminate(laptop: Laptop, name: str) -> None:
    laptop.ec2.terminate_instances(InstanceIds=[name])
    until(lambda: laptop.state(name) == "terminated")


def test_a_cloud_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with running_cloud(tmp_path) as info:
        launch(Laptop(info), 2)
        os.kill(info.pid, signal.SIGKILL)
        until(lambda: remains(info) == [])
        assert cloud.find() is None


@pytest.mark.soak
def test_a_cloud_whose_hypervisor_is_killed_ends_and_leaves_nothing(tmp_path: Path) -> None:
    with running_cloud(tmp_path) as info:
        launch(Laptop(info), 2)
        os.kill(hypervisor_of(info), signal.SIGKILL)
        until(lambda: remains(info) == [])


def test_what_nobody_could_clean_up_the_next_look_does(tmp_path: Path) -> None:
    with running_cloud(tmp_path) as info:
        launch(Laptop(info))
        hypervisor = hypervisor_of(info)
        os.kill(info.pid, signal.SIGSTOP)
        for pid in (hypervisor, info.pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not processes.started_at(info.pid) and not processes.started_at(hypervisor))
        assert Path(info.folder).exists()
        assert cloud.find() is None
        assert remains(info) == []


def hypervisor_of(info: CloudInfo) -> int:
    """The child of the cloud that has this name."""
    children = Path(f"/proc/{info.pid}/task/{info.pid}/children").read_text().split()
    (found,) = (
        pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "se-hypervisor\n"
    )
    return int(found)


def test_an_attached_cloud_ends_with_its_starter_however_that_ends(tmp_path: Path) -> None:
    process, info = starter(tmp_path, "attach")
    launch(Laptop(info))
    process.kill()
    reap(process)
    until(lambda: remains(info) == [])


@pytest.mark.soak
def test_a_detached_cloud_outlives_its_starter_and_is_stopped_by_another(tmp_path: Path) -> None:
    process, info = starter(tmp_path, "detach")
    process.kill()
    reap(process)
    with environment(SPOTELASTIC_HOME=str(tmp_path)):
        assert cloud.find() == info
        launch(Laptop(info), 2)
        cloud.stop(info)
        assert cloud.find() is None
        assert remains(info) == []


@pytest.mark.soak
def test_a_second_start_is_refused_and_another_home_is_not(
    laptop: Laptop, home: Path, tmp_path: Path
) -> None:
    first = laptop.info
    running = pytest.raises(UsageError, match=f"already running \\(pid {first.pid}")
    with environment(SPOTELASTIC_HOME=str(home)), running:
        cloud.start(detach=False)
    with running_cloud(tmp_path / "two") as second:
        assert second.net != first.net
        launch(Laptop(second))


@pytest.mark.soak
def test_a_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(1)")
    with environment(
        SPOTELASTIC_HOME=str(tmp_path / "home"), SPOTELASTIC_LOCAL_PROGRAM=str(broken)
    ):
        with pytest.raises(EnvironmentFailure, match="ended while it started"):
            cloud.start(detach=False)
        assert cloud.find() is None
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_machine_that_is_too_small_is_told_so_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**20))
    told = pytest.raises(EnvironmentFailure, match=r"/dev/shm has \d+ MiB free, .* needs")
    with environment(SPOTELASTIC_HOME=str(tmp_path)), told:
        cloud.start(detach=False)


def test_a_cloud_whose_clusters_have_all_ended_by_themselves_ends_with_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["spotelastic", "down"])
    with running_cloud(tmp_path) as info, environment(**cloud.environment(info)):
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        assert capsys.readouterr().out == "ending the local cloud\n"
        assert cloud.find() is None
