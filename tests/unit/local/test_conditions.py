"""Under which conditions the local cloud is used: how they are written, and what is drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.unkind.conditions import (
    KIND,
    VARIABLE,
    Conditions,
    ConditionsInForce,
    from_environment,
    parse,
)

from spotelastic.errors import UsageError

SHARES = st.floats(0, 1, allow_nan=False).map(lambda share: round(share, 3))


def test_without_any_the_cloud_is_kind() -> None:
    assert parse("") == parse(" , ") == from_environment({}) == KIND
    kind = ConditionsInForce()
    assert (kind.pending(), kind.boot(), kind.end("p5.48xlarge"), kind.detach()) == (0, 0, 0, 0)
    assert (kind.deliveries(), kind.refuses(), kind.age(), kind.health_check()) == ((0,), 0, 0, 0)


@given(
    st.builds(
        Conditions,
        slow=SHARES,
        stale=SHARES,
        throttled=SHARES,
        late=SHARES,
        duplicated=SHARES,
        lost=SHARES,
        together=st.integers(0, 3),
        seed=st.integers(0, 9),
    )
)
def test_conditions_are_read_as_they_are_written(conditions: Conditions) -> None:
    assert parse(str(conditions)) == conditions
    assert Conditions(**conditions.changed()) == conditions  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("stal=3", "there is no condition 'stal'; there are slow, stale"),
        ("stale", "stale=: give a number"),
        ("stale=soon", "stale=soon: give a number"),
        ("stale=-1", "from 0 on"),
        ("stale=nan", "from 0 on"),
        ("slow=inf", "from 0 on"),
        ("together=1.5", "give a number"),
        ("lost=20", "a share from 0 to 1"),
    ],
)
def test_what_is_no_condition_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"{VARIABLE}: .*{why}"):
        from_environment({VARIABLE: text})


def drawn(conditions: Conditions) -> list[object]:
    force = ConditionsInForce(conditions)
    return [(force.deliveries(), force.refuses(), force.age(), force.boot()) for _ in range(20)]


def test_one_seed_draws_the_same_and_another_one_does_not() -> None:
    bad = parse("slow=0.1,stale=3,throttled=0.2,late=2,duplicated=0.5,lost=0.2,seed=1")
    assert drawn(bad) == drawn(bad) != drawn(parse(f"{bad},seed=2"))


def test_how_many_calls_there_are_does_not_change_which_events_are_lost() -> None:
    bad = parse("throttled=0.2,late=2,duplicated=0.5,lost=0.5,seed=3")
    alone, busy = ConditionsInForce(bad), ConditionsInForce(bad)
    told = []
    for _ in range(20):
        busy.refuses()
        told.append(busy.deliveries())
    assert told == [alone.deliveries() for _ in range(20)]


def test_instances_with_many_accelerators_end_late_and_all_durations_are_scaled() -> None:
    slow = ConditionsInForce(parse("slow=0.1"))
    for _ in range(20):
        assert 30 <= slow.end("p4d.24xlarge") <= 90
        assert 30 <= slow.end("trn1.32xlarge") <= 90
        assert 2 <= slow.end("g5.12xlarge") <= 6
        assert 12 <= slow.pending() + slow.boot() <= 30


@given(st.integers(0, 99))
def test_an_event_is_lost_late_or_doubled_as_often_as_was_asked_for(seed: int) -> None:
    force = ConditionsInForce(Conditions(late=2.0, duplicated=0.5, lost=0.25, seed=seed))
    copies = [force.deliveries() for _ in range(200)]
    assert {len(each) for each in copies} == {0, 1, 2}
    assert all(0 <= delay <= 2.0 for each in copies for delay in each)
