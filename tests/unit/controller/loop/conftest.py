"""A leader over one group of three nodes."""

import pytest
from support.clusters.leading_controller import Leader


@pytest.fixture
def leader() -> Leader:
    """It has taken over, and has seen all that there is."""
    leader = Leader()
    leader.turn()
    leader.calls.clear()
    return leader
