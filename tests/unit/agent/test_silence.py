"""Workers that execute no step for long: when people are told, and what."""

from dataclasses import replace
from pathlib import Path

from spotelastic_checkpoints.types import WorkerStep
from test_agent_decide import NOW, ROUND, decided, local, seen

from spotelastic.agent import actions as do
from spotelastic.agent.round_duties import DUMP_WITHIN
from spotelastic.agent.state.silence import LOOK_EVERY, QUIET_AFTER, Silence, listened
from spotelastic.agent.workers.standing import place, places


def page(step: int = 0, *, waiting: bool = False, step_time: float = 0.0) -> WorkerStep:
    return WorkerStep(0, 0, step, step_time, 0.0, 0.0, True, waiting)


def quiet(seconds: float, **more: object) -> Silence:
    """Looked at just now; nothing new for so long."""
    return replace(Silence(NOW, (4,), since=NOW - seconds), **more)  # type: ignore[arg-type]


def actions(silence: Silence, now: float = NOW, **more: object) -> tuple[do.Action, ...]:
    return decided(local(silence=silence, **more), seen(timeout=0), now).actions


def test_pages_are_looked_at_now_and_then() -> None:
    assert actions(Silence(), NOW + LOOK_EVERY - 1) == ()
    assert decided(local(), seen(timeout=0), NOW).wake_at == NOW + LOOK_EVERY
    assert actions(Silence(), NOW + LOOK_EVERY) == (do.Listen(),)


def test_the_time_counts_from_the_start_or_from_the_last_step_or_wait() -> None:
    none = listened(Silence(), [page()], NOW + 15)
    assert none.due(NOW) == NOW + QUIET_AFTER
    stepped = listened(none, [page(1)], NOW + 30)
    assert stepped.due(NOW) == NOW + 30 + QUIET_AFTER
    still = listened(stepped, [page(1)], NOW + 45)
    assert still.due(NOW) == stepped.due(NOW)
    waits = listened(still, [page(1, waiting=True)], NOW + 60)
    assert waits.due(NOW) == NOW + 60 + QUIET_AFTER
    # Who joined late has executed steps before the first look.
    assert listened(Silence(), [page(7)], NOW + 15).since == NOW + 15


def test_slow_steps_are_given_three_of_them_and_what_was_told_twice_as_long() -> None:
    assert listened(Silence(), [page(step_time=50.0)], NOW).due(NOW) == NOW + 150
    assert quiet(0, told=2).due(0.0) == NOW + 4 * QUIET_AFTER
    told = quiet(500, told=2, line="no step")
    assert listened(told, [page(5)], NOW) == Silence(NOW, (5,), since=NOW)


def test_silent_workers_are_asked_where_they_stand_and_then_people_are_told() -> None:
    assert do.AskWhere() not in actions(quiet(QUIET_AFTER - 1))
    assert actions(quiet(QUIET_AFTER)) == (do.AskWhere(),)
    asked = quiet(QUIET_AFTER, asked_at=NOW)
    assert actions(asked) == ()
    assert actions(asked, NOW + DUMP_WITHIN) == (do.TellSilence(),)


def test_a_script_that_may_have_no_checkpointer_is_asked_once() -> None:
    assert actions(quiet(QUIET_AFTER), attached=False) == (do.AskWhere(),)
    assert actions(quiet(1e6, told=1), attached=False) == ()
    plain = replace(ROUND, plain=ROUND.number)
    asked = local(silence=quiet(1e6), attached=False)
    assert decided(asked, seen(plain, timeout=0), NOW).actions == ()


def test_workers_that_have_left_their_loop_or_end_are_not_asked() -> None:
    assert actions(quiet(1e6), left=True) == ()
    assert actions(quiet(1e6), killed=True) == ()


STACK = """Current thread 0x01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/home/me/env/lib/python3.11/site-packages/torch/x.py", line 5 in get
  File "/home/me/train.py", line 12 in load
  File "/home/me/train.py", line 40 in <module>
"""


def test_a_place_names_the_users_line_and_what_it_has_called() -> None:
    assert place(STACK, Path("/home/me")) == "train.py:12 in load (threading.py:324 in wait)"
    assert place(STACK, Path("/elsewhere")) == "threading.py:324 in wait"
    assert place("", Path("/home/me")) == ""


def test_ranks_at_one_place_are_told_together() -> None:
    told = places({0: "a.py:1 in f", 1: "b.py:2 in g", 2: "a.py:1 in f", 3: ""})
    assert told == "rank 0, 2 at a.py:1 in f; rank 1 at b.py:2 in g; rank 3 does not answer"
    assert places({rank: f"a.py:{rank} in f" for rank in range(99)}).endswith("; …")
