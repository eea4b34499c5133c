"""What an agent takes in before it decides again."""

import queue

from spotelastic.agent.agent_loop import Happening, arrivals
from spotelastic.agent.state.events import NodesRead, ZygoteGone, ZygoteStarted

FIRST, SECOND, THIRD = ZygoteStarted(), ZygoteGone(), NodesRead()
LONG = 30.0


def arrived(*events: Happening) -> queue.SimpleQueue[Happening]:
    made: queue.SimpleQueue[Happening] = queue.SimpleQueue()
    for event in events:
        made.put(event)
    return made


def test_all_that_has_arrived_is_taken_in_at_once() -> None:
    assert list(arrivals(arrived(FIRST, SECOND), LONG, 0.0)) == [FIRST, SECOND]
    assert list(arrivals(arrived(), 0.0, LONG)) == [], "nothing came, so nothing is gathered"


def test_an_agent_that_gathers_waits_for_what_comes_after_the_first_event() -> None:
    events = arrived(FIRST)
    taken = arrivals(events, LONG, LONG)
    assert next(taken) is FIRST
    for event in (SECOND, THIRD):  # each comes when all before it have been taken
        events.put(event)
        assert next(taken) is event


def test_it_does_not_gather_for_ever() -> None:
    assert list(arrivals(arrived(FIRST, SECOND), LONG, 0.001)) == [FIRST, SECOND]
