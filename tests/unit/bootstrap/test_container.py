"""The command line that puts a worker's agent into a container."""

from dataclasses import replace
from pathlib import Path

from spotelastic.bootstrap.container import JobContainer, command, efa

BOX = JobContainer(
    image="registry.example/team/torch:2.9",
    wheel=Path("/opt/spotelastic/spotelastic-0.1.0-py3-none-any.whl"),
    folders=(Path("/opt/spotelastic"), Path("/mnt/spotelastic")),
    environ={"SPOTELASTIC_SCRATCH": "/mnt/spotelastic"},
    gpus=True,
    devices=(Path("/dev/infiniband/uverbs0"),),
)


def test_a_container_has_all_that_the_node_has() -> None:
    assert command(BOX) == (
        *("docker", "run", "--rm", "--name", "spotelastic", "--user", "0"),
        *("--gpus", "all"),
        *("--network", "host", "--ipc=host", "--ulimit", "memlock=-1", "--cap-add", "SYS_PTRACE"),
        *("--cap-add", "SYSLOG", "--device=/dev/kmsg:/dev/kmsg:r"),
        *("--cap-add", "SYS_NICE", "--oom-score-adj", "-900", "--env=SPOTELASTIC_PROTECTED=1"),
        "--device=/dev/infiniband/uverbs0",
        "--volume=/opt/spotelastic:/opt/spotelastic",
        "--volume=/mnt/spotelastic:/mnt/spotelastic",
        "--env=SPOTELASTIC_SCRATCH=/mnt/spotelastic",
        *("--entrypoint", "sh", "registry.example/team/torch:2.9", "-c"),
        "python3 -m pip install -q --disable-pip-version-check "
        "/opt/spotelastic/spotelastic-0.1.0-py3-none-any.whl && exec nice -n -10 python3 -m "
        "spotelastic boot agent",
    )


def test_a_node_without_gpus_or_efa_asks_for_none() -> None:
    words = command(replace(BOX, gpus=False, devices=()))
    assert "--gpus" not in words
    assert not any(word.startswith("--device") for word in words)


def test_of_the_devices_only_the_verbs_go_in() -> None:
    names = ("rdma_cm", "uverbs1", "issm0", "uverbs0")
    found = efa([Path("/dev/infiniband", name) for name in names])
    assert [path.name for path in found] == ["uverbs0", "uverbs1"]
