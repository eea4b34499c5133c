"""What the kernel killed for lack of memory is told from what ended otherwise."""

from pathlib import Path

import pytest

from spotelastic.agent.workers.memory import Kills, explanation, kills

GIB = 1 << 30
KINDS = {
    "2": ("0::/job", "cgroup2", "rw", "memory.max", "memory.current", "memory.events"),
    "1": (
        *("4:memory:/job", "cgroup", "rw,memory"),
        *("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    ),
}


class Machine:
    def __init__(self, folder: Path, version: str) -> None:
        self.proc, self.mounted = folder / "proc", folder / "cgroup"
        path, kind, options, self._limit, self._usage, self._events = KINDS[version]
        (self.proc / "self").mkdir(parents=True)
        (self.mounted / "job").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(f"{path}\n")
        mount = f"30 22 0:26 / {self.mounted} rw shared:4 - {kind} name {options}\n"
        (self.proc / "self" / "mountinfo").write_text(mount)
        (self.proc / "meminfo").write_text(f"MemTotal: {64 * 1024 * 1024} kB\nMemFree: 1 kB\n")
        self.killed(0, anywhere=3)

    def limited(self, folder: str, nbytes: int) -> None:
        (self.mounted / folder / self._limit).write_text(f"{nbytes}\n")
        (self.mounted / folder / self._usage).write_text(f"{nbytes}\n")

    def killed(self, here: int, anywhere: int, folder: str = "job") -> None:
        (self.mounted / folder / self._events).write_text(f"low 0\noom_kill {here}\n")
        (self.proc / "vmstat").write_text(f"nr_free_pages 7\noom_kill {anywhere}\n")


@pytest.fixture(params=KINDS)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


@pytest.mark.parametrize("folder", ["job", ""])
def test_a_kill_at_the_limit_of_a_cgroup_is_told_with_its_number(
    machine: Machine, folder: str
) -> None:
    machine.limited(folder, 8 * GIB)
    before = kills(machine.proc)
    assert before == Kills(0, 3)
    machine.killed(1, anywhere=4, folder=folder)
    where = machine.mounted / folder
    told = f"out of memory: the kernel killed it at the limit of 8.0 GiB ({where})"
    # Also of a worker whose data loader was killed, and that ended by an exception.
    for killed in (True, False):
        assert explanation(before, killed=killed, proc=machine.proc) == told


def test_a_kill_for_lack_of_memory_on_the_machine_explains_only_what_was_killed(
    machine: Machine,
) -> None:
    before = kills(machine.proc)
    machine.killed(0, anywhere=4)
    assert explanation(before, killed=False, proc=machine.proc) == ""
    told = "out of memory: the kernel killed for lack of it (this machine has 64.0 GiB)"
    assert explanation(before, killed=True, proc=machine.proc) == told


def test_whatever_was_killed_otherwise_or_earlier_was_not_out_of_memory(machine: Machine) -> None:
    machine.killed(2, anywhere=5)
    before = kills(machine.proc)
    assert explanation(before, killed=True, proc=machine.proc) == ""


def test_a_system_that_counts_nothing_explains_nothing(tmp_path: Path) -> None:
    assert kills(tmp_path) == Kills(0, 0)
    assert explanation(Kills(0, 0), killed=True, proc=tmp_path) == ""
