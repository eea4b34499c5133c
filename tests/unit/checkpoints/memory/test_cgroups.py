"""Memory limits of containers and services, as the files of both versions of cgroups tell them."""

from pathlib import Path

import pytest
from spotelastic_checkpoints.errors import ArenaFull
from spotelastic_checkpoints.memory import cgroups
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.memory.cgroups import Limit

MIB = 1 << 20
GIB = 1 << 30


class Machine:
    """Files as /proc and a mounted cgroup file system show them."""

    def __init__(self, folder: Path) -> None:
        self.process = folder / "proc"
        self.process.mkdir()
        self.mounted = folder / "cgroup"
        self._paths: list[str] = []
        self._mounts: list[str] = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"]

    def in_cgroup(self, line: str) -> None:
        self._paths.append(line)
        (self.process / "cgroup").write_text("\n".join(self._paths) + "\n")

    def mount(self, root: str, kind: str, options: str) -> None:
        self._mounts.append(
            f"30 22 0:26 {root} {self.mounted} rw,nosuid shared:4 master:1 - {kind} name {options}"
        )
        (self.process / "mountinfo").write_text("\n".join(self._mounts) + "\n")

    def v2(self, cgroup: str, most: str, used: int, *, high: str = "max", stat: str = "") -> None:
        folder = self.mounted / cgroup
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.high").write_text(f"{high}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(stat or "anon 0\n")

    def v1(self, cgroup: str, most: int, used: int, stat: str) -> None:
        folder = self.mounted / cgroup
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{most}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(stat)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_tightest_of_all_that_are_above_counts(machine: Machine) -> None:
    machine.in_cgroup("0::/pods/pod/worker")
    machine.mount("/", "cgroup2", "rw,nsdelegate")
    machine.v2("pods/pod/worker", "max", GIB)
    machine.v2("pods/pod", str(8 * GIB), 5 * GIB)
    machine.v2("pods", str(64 * GIB), 62 * GIB)
    assert cgroups.tightest(machine.process) == Limit(machine.mounted / "pods", 64 * GIB, 62 * GIB)
    machine.v2("pods/pod/worker", "max", GIB, high=str(2 * GIB))
    limit = cgroups.tightest(machine.process)
    assert limit is not None
    assert (limit.cgroup.name, limit.free) == ("worker", GIB)


def test_files_that_are_only_cached_are_free_and_shared_memory_is_not(machine: Machine) -> None:
    machine.in_cgroup("0::/")
    machine.mount("/", "cgroup2", "rw")
    stat = f"anon {GIB}\nfile {5 * GIB}\nshmem {2 * GIB}\n"
    stat += f"inactive_anon {3 * GIB}\nactive_file {GIB}\ninactive_file {2 * GIB}\n"
    machine.v2("", str(8 * GIB), 6 * GIB, stat=stat)
    limit = cgroups.tightest(machine.process)
    assert limit is not None
    assert (limit.used, limit.free) == (3 * GIB, 5 * GIB)


def test_a_container_that_sees_only_its_own_part_has_the_limit_of_that(machine: Machine) -> None:
    machine.in_cgroup("9:cpu,cpuacct:/docker/c0ffee")
    machine.in_cgroup("4:memory:/docker/c0ffee")
    machine.in_cgroup("0::/")
    machine.mount("/docker/c0ffee", "cgroup", "rw,memory")
    machine.v1("", 4 * GIB, 3 * GIB, f"cache 0\ntotal_inactive_file {GIB}\ntotal_active_file 0\n")
    assert cgroups.tightest(machine.process) == Limit(machine.mounted, 4 * GIB, 2 * GIB)


@pytest.mark.parametrize("path", ["/../other", "/elsewhere"])
def test_a_process_outside_of_what_is_mounted_has_at_least_the_limit_of_that(
    machine: Machine, path: str
) -> None:
    machine.in_cgroup(f"0::{path}")
    machine.mount("/service" if path == "/elsewhere" else "/", "cgroup2", "rw")
    machine.v2("", str(4 * GIB), GIB)
    limit = cgroups.tightest(machine.process)
    assert limit is not None
    assert limit.free == 3 * GIB


def test_where_nothing_is_limited_or_told_there_is_no_limit(machine: Machine) -> None:
    assert cgroups.tightest(machine.process) is None
    machine.in_cgroup("0::/user.slice")
    machine.mount("/", "cgroup2", "rw")
    machine.v2("user.slice", "max", GIB)
    assert cgroups.tightest(machine.process) is None


def test_slots_beyond_the_limit_are_refused_with_its_numbers_and_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Limit(Path("/sys/fs/cgroup/job"), 64 * MIB, 61 * MIB)
    monkeypatch.setattr(cgroups, "tightest", lambda: limit)
    arena = Arena(tmp_path, workers=2)
    with pytest.raises(ArenaFull) as told:
        arena.slots_that_fit(MIB, most=3)
    assert "need 4 MiB" in str(told.value)
    assert "3 MiB are free of the 64 MiB that /sys/fs/cgroup/job may use" in str(told.value)
    assert "raise the memory limit" in str(told.value)
    assert "SPOTELASTIC_SLOTS=1" in str(told.value)
    assert arena.slots_that_fit(MIB, most=1) == 1

    path = arena.slot_path(0, 0)
    arena.allocate(path, MIB)
    with pytest.raises(ArenaFull, match=r"4 MiB more for .*raise the memory limit"):
        arena.allocate(path, 5 * MIB)
    assert path.stat().st_size == MIB
