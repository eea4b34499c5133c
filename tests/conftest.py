"""What holds for every test: it ends what it started, and takes as long as it takes.

Servers of a module or session are up before the first look and are therefore no leftovers.
"""

import functools
import gc
import os
import signal
from collections.abc import Iterator

import pytest
from botocore.loaders import JSONFileLoader
from hypothesis import HealthCheck, settings
from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.log_records import LogStyle
from support.processes.leftovers import look, settled
from support.unkind import UNKIND
from support.unkind.conditions import VARIABLE

from spotelastic.local.cloud import PROGRAM

# How fast an example is says more of the machine than of what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


# What is imported and collected stays: to look for garbage among it takes a quarter of the time.
gc.disable()


# Each session of boto3 parses the descriptions of services anew, in one process as in many: half of
# what a test of an emulated account takes. Nobody changes what was parsed.
JSONFileLoader.load_file = staticmethod(functools.cache(JSONFileLoader().load_file))


# In the background of a shell that is not interactive, and below nohup, these are ignored, and so
# they would be by every program that a test starts and then ends by one of them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


TURNS = 9
"""Turns of `make soak` that take every test once."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A turn of `make soak` takes a ninth of the tests, so that three turns take about an hour, and
    nine in a row take all of them. Those that make other choices in each turn are in each.
    """
    turn = os.environ.get("SOAK_TURN")
    if turn is None:
        return
    rotating = [item for item in items if not item.get_closest_marker("every_turn")]
    left = {item for at, item in enumerate(rotating) if (at + int(turn)) % TURNS}
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


# All local clouds of the tests are as unkind as is wished.
if VARIABLE in os.environ:
    os.environ[PROGRAM] = UNKIND
    os.environ["AWS_MAX_ATTEMPTS"] = "6"


# A process that reads the first commit back takes as long as a whole test does. Those that are
# about it take this away.
os.environ["SPOTELASTIC_PROVE"] = "off"


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What our own modules log, as people read it, in this process."""
    lines: list[str] = []
    with log_records.logging_to("", LogStyle(), lines.append):
        yield lines


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = look()
    yield
    remaining = settled(lambda: look().since(before))
    if remaining:
        pytest.fail("the test left behind: " + "; ".join(remaining), pytrace=False)
