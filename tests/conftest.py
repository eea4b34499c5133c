"""What holds for every test: it ends what it started.

Servers of a module or session are up before the first look and are therefore no leftovers.
"""

from collections.abc import Iterator

import pytest
from support.leftovers import look, settled


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = look()
    yield
    remaining = settled(lambda: look().since(before))
    if remaining:
        pytest.fail("the test left behind: " + "; ".join(remaining), pytrace=False)
