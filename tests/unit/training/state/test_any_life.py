"""Whatever a run makes of its state comes back as it was, or is refused by name when it is saved.

Then both states are trained on: what no state shows, such as a scheduler's lists, is in the steps.
More of them: `DRAWN_LIVES=5000 .venv/bin/python -m pytest -n 0` and this file.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from support.draws import drawn
from support.saving.one_slot import OneSlot, load, stream
from support.training.drawn_lives import Life, essence, lives, train
from support.training.drawn_states import difference

from spotelastic.errors import UsageError
from spotelastic.training.save.saver import LayoutChanged

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(3600)]
DRAWN = int(os.environ.get("DRAWN_LIVES", drawn(150)))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _same(life: Life, *, streams: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        slot, state = Path(folder) / "slot", life.begin()
        saver = OneSlot(slot, state)
        try:
            for step, changes in enumerate(life.changes, 1):
                for change in changes:
                    change(state)
                try:
                    saver.save(step)
                except LayoutChanged:
                    saver.plan()
                    saver.save(step)
        except UsageError as refused:
            assert any(name in str(refused) for name in state), refused
            event("refused")
            return
        again = life.again()
        (stream if streams else load)(slot, len(life.changes), again)
    event("saved")
    for _ in range(3):
        differs = difference(essence(state), essence(again))
        assert not differs, differs
        train(state)
        train(again)


def many_draws(drawn: int) -> settings:
    return settings(
        max_examples=drawn,
        deadline=None,
        suppress_health_check=[*HealthCheck],
        derandomize=drawn <= 250,
        print_blob=True,
    )


@many_draws(DRAWN)
@given(life=lives())
def test_what_a_run_makes_of_a_state_comes_back(life: Life) -> None:
    _same(life, streams=False)


@pytest.mark.soak
@many_draws(5000)
@given(life=lives())
def test_what_any_run_makes_of_a_state_comes_back(life: Life) -> None:
    _same(life, streams=True)
