"""Whatever is drawn for a state comes back as it was, or is refused by name when it is saved.

More of them: `DRAWN_STATES=2000 .venv/bin/python -m pytest -n 0` and this file.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.draws import drawn
from support.saving.one_slot import OneSlot, load, stream
from support.training.drawn_states import ENTRIES, Make, built, difference
from torch.testing._internal.distributed.fake_pg import FakeStore

from spotelastic.errors import UsageError
from spotelastic.training.save.overlap import SAMPLE, OverlapSizes
from spotelastic.training.save.saver import LayoutChanged

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(3600)]
SMALL = OverlapSizes(block=SAMPLE, least=1)
"""So that copies of what is drawn are made beside training, too."""
DRAWN = int(os.environ.get("DRAWN_STATES", drawn(350)))


@pytest.fixture(autouse=True, scope="module")
def the_only_rank() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield
    dist.destroy_process_group()


def saved(slot: Path, entries: Mapping[str, Make], *, twice: bool, overlaps: bool) -> Any:
    """The state that was saved; None where it was refused, in a line that names an entry."""
    state = built(entries, 1)
    try:
        written = OneSlot(slot, state, sizes=SMALL)
        written.save(1, overlaps=overlaps)
        if twice:
            for name, entry in built(entries, 2).items():
                state[name] = entry
            try:
                written.save(1, overlaps=overlaps)
            except LayoutChanged:
                OneSlot(slot, state, sizes=SMALL).save(1, overlaps=overlaps)
    except UsageError as refused:
        told = str(refused)
        assert "\n" not in told.strip() and any(name in told for name in state), told
        return None
    return state


@settings(
    max_examples=DRAWN,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=DRAWN <= 350,
    print_blob=True,
)
@given(entries=ENTRIES, twice=st.booleans(), overlaps=st.booleans(), streams=st.booleans())
def test_a_state_comes_back_as_it_was_or_is_refused_by_name(
    entries: Mapping[str, Make], twice: bool, overlaps: bool, streams: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        slot = Path(folder) / "slot"
        state = saved(slot, entries, twice=twice, overlaps=overlaps)
        event("refused" if state is None else "saved")
        if state is None:
            return
        again = built(entries, 0)
        (stream if streams else load)(slot, 1, again)
        assert not difference(state, again)
