"""Slots are looked at beside training, and no longer once training is over."""

from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from spotelastic_checkpoints.types import Item
from support.processes.patience import PATIENT
from support.saving.one_slot import OneSlot

from spotelastic.training.save import saver as saver_module


def test_the_end_waits_for_who_looks_at_a_slot_and_lets_nobody_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on, looked = Event(), Event(), list[str]()

    def look(_: memoryview, item: Item) -> torch.Tensor:
        inside.set()
        assert go_on.wait(PATIENT)
        looked.append(item.fqn)
        return torch.zeros(3)

    monkeypatch.setattr(saver_module, "tensor_at", look)
    saver = OneSlot(tmp_path / "slot", {"w": torch.ones(3)}).saver
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
    assert looked == ["w"]
