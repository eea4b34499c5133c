"""The phases of a boot: from the script's file through variables to one event of the run."""

import os
from pathlib import Path

import pytest
from support.store.memory_store import MemoryStore

from spotelastic.bootstrap.phases import BootPhases
from spotelastic.bootstrap.reports import BootReports
from spotelastic.model.progress import Event
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys


def test_the_run_is_told_once_what_all_processes_of_a_boot_have_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTELASTIC_PHASES", "")
    (tmp_path / "phases").write_text("machine 21\ndownload 2\npackages 41\n")
    times = iter([100.0, 103.5])
    parent = BootPhases.of_script(tmp_path / "phases")
    parent.clock = lambda: next(times)
    with parent.phase("disks"):
        pass
    parent.hand_on()

    agent = BootPhases.of_variables(os.environ)
    times_of_agent = iter([10.0, 11.0, 20.0, 20.25])
    agent.clock = lambda: next(times_of_agent)
    for _ in range(2):
        with agent.phase("job"):
            pass
    store, keys = MemoryStore(lambda: 0.0), Keys("run")
    reports = BootReports(store, keys, "i-1")
    agent.tell_once(reports, tmp_path / "told")
    agent.tell_once(reports, tmp_path / "told")  # it died, and was started again

    (stored,) = store.range(keys.event())[0]
    event = decode(stored.data, Event)
    assert (event.kind, event.node) == ("prepare", "i-1")
    assert (
        event.message == "i-1: boot: machine 21 s, download 2 s, packages 41 s, disks 4 s, job 1 s"
    )
    assert event.data["phases"] == {
        "machine": 21.0,
        "download": 2.0,
        "packages": 41.0,
        "disks": 3.5,
        "job": 1.2,
    }


@pytest.mark.parametrize("text", ["", "packages", "packages much", "a b c\n\n", "=", "a=b=c"])
def test_what_cannot_be_read_of_the_phases_keeps_no_node_from_booting(
    tmp_path: Path, text: str
) -> None:
    assert BootPhases.of_script(tmp_path / "none").seconds == {}
    (tmp_path / "phases").write_text(text)
    assert BootPhases.of_script(tmp_path / "phases").seconds == {}
    assert BootPhases.of_variables({"SPOTELASTIC_PHASES": text}).seconds == {}
