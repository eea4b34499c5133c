"""Slots are looked at beside training, and no longer once training is over."""

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from support.one_slot import OneSlot
from support.patience import PATIENT

from spotelastic.training.save.saver import Saver


def test_the_end_waits_for_who_looks_at_a_slot_and_lets_nobody_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on, looked = Event(), Event(), list[str]()

    def look(_: Saver, path: str, memory: Any) -> None:
        inside.set()
        assert go_on.wait(PATIENT)
        looked.append(path)

    monkeypatch.setattr(Saver, "_tensors_in", look)
    saver = OneSlot(tmp_path / "slot", {"w": torch.ones(3)})._saver
    looking = Thread(target=saver.look_at, args=("one", memoryview(b"")))
    looking.start()
    assert inside.wait(PATIENT)
    closing = Thread(target=saver.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    closing.join(PATIENT)
    looking.join(PATIENT)
    assert not closing.is_alive()
    saver.look_at("two", memoryview(b""))
    assert looked == ["one"]
