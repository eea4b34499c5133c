"""Which zones are avoided because nodes are taken there soon, and what follows from that."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotelastic.cloud.model import GroupMember, Instance, WorkerGroup, ZoneOffer
from spotelastic.controller.decisions import short_lives
from spotelastic.controller.decisions.capacity import sizes
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.decisions.zone_packing import undecided
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.model.observation import (
    ControllerPolicy,
    LaunchFailures,
    Observation,
    Replace,
    SetSubnets,
    Tell,
)
from spotelastic.controller.model.remembered import Remembered
from spotelastic.controller.model.short_lives import (
    FORGOTTEN_AFTER,
    SHORT_LIFE,
    SHORT_LIFE_OVER,
    ShortLives,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Reset, StoredValue

NOW = 100_000.0
POLICY = ControllerPolicy()
ZONES = tuple(ZoneOffer(name, (f"subnet-{name}",), f"use1-{name}", 1.0, 9) for name in "abc")
BAD = ShortLives(POLICY.short_lives, 3, 240.0, NOW - 900.0, NOW - 60.0, NOW - 60.0)
WORSE = replace(BAD, lived=60.0)


def job(home: str = "a", *, launched: float = 240.0, **nodes: str) -> Observation:
    """Nodes by name, each with its zone, launched so many seconds ago."""
    members = tuple(GroupMember(name, "InService") for name in nodes)
    return Observation(
        desired=len(nodes),
        least=1,
        since=0.0,
        job=Job("running", 0.0),
        group=WorkerGroup("workers", len(nodes), members, (f"subnet-{home}",)),
        zones=ZONES,
        machines={
            name: Instance(name, "worker", "running", "t", zone, "", True, NOW - launched)
            for name, zone in nodes.items()
        },
        nodes={name: Node(name, name, "", zone, Fingerprint()) for name, zone in nodes.items()},
        committed=500,
    )


def warned(seen: Observation, node: str, kind: InterruptionKind) -> Observation:
    notice = Notice(kind, node, "imds", NOW, NOW, NOW + 120.0)
    return replace(seen, drains={**seen.drains, node: Drain(node, notice)})


def taken(seen: Observation, node: str, reason: str) -> Observation:
    gone = replace(seen.machines[node], state="terminated", reason=reason)
    return replace(seen, machines={**seen.machines, node: gone})


def told(seen: Observation, now: float = NOW) -> list[Event]:
    actions = decide(seen, now, POLICY).actions
    events = [action.event for action in actions if isinstance(action, Tell)]
    return [event for event in events if event.kind in (SHORT_LIFE, SHORT_LIFE_OVER)]


def goes_to(seen: Observation) -> str:
    """The zone to which the nodes go; empty: nowhere."""
    moves = [a for a in decide(seen, NOW, POLICY).actions if isinstance(a, SetSubnets)]
    assert bool(moves) <= undecided(seen, NOW, POLICY)
    return moves[0].subnets[0].removeprefix("subnet-") if moves else ""


# -- what counts ---------------------------------------------------------------------------------


def test_a_node_that_is_taken_soon_is_on_record_once_with_the_time_that_it_lived() -> None:
    seen = warned(job(n1="a", n2="a"), "n1", InterruptionKind.SPOT_INTERRUPTION)
    (event,) = told(seen)
    assert event.message == "n1 was taken 4 min after its launch in a"
    assert event.data == {"zone": "a", "type": "t", "lived": 240.0, "at": NOW}
    assert told(replace(seen, told=frozenset({(SHORT_LIFE, "n1", "::")}))) == []
    assert told(taken(job(n1="a", n2="a"), "n1", "Server.SpotInstanceTermination")) == [event]


@pytest.mark.parametrize(
    "seen",
    [
        warned(job(n1="a", n2="a", launched=2000.0), "n1", InterruptionKind.SPOT_INTERRUPTION),
        warned(job(n1="a", n2="a"), "n1", InterruptionKind.PLANNED),
        warned(job(n1="a", n2="a"), "n1", InterruptionKind.UNHEALTHY),
        warned(job(n1="a", n2="a"), "n1", InterruptionKind.MAINTENANCE),
        taken(job(n1="a", n2="a"), "n1", "Client.UserInitiatedShutdown"),
        taken(job(n1="a", n2="a"), "n1", "Client.InstanceInitiatedShutdown"),
        replace(
            warned(job(n1="a", n2="a"), "n1", InterruptionKind.SPOT_INTERRUPTION), zones=ZONES[:1]
        ),
    ],
    ids=["old", "planned", "sick", "maintenance", "by hand", "own shutdown", "no choice"],
)
def test_nothing_else_is_a_short_life(seen: Observation) -> None:
    assert told(seen) == []


def test_the_more_nodes_pause_for_it_the_longer_a_node_must_live() -> None:
    few, many = (
        job("a", launched=240.0, **{f"n{each}": "a" for each in range(n)}) for n in (1, 64)
    )
    assert short_lives.pays_after(few, POLICY) == 250.0
    assert short_lives.pays_after(many, POLICY) == 880.0


def life(zone: str, at: float, lived: float = 240.0, node: str = "") -> Event:
    data = {"zone": zone, "lived": lived, "at": at}
    return Event(at, SHORT_LIFE, "", node or f"n{at}", data)


def after(*events: Event) -> dict[str, ShortLives]:
    remembered = Remembered()
    for event in events:
        remembered.add(event)
    return remembered.short_lives


def test_nodes_that_are_taken_together_count_once() -> None:
    lives = after(life("a", 1000.0), life("a", 1030.0, 300.0), life("a", 1059.0), life("a", 1061.0))
    assert (lives["a"].times, lives["a"].nodes) == (2, 4)
    assert lives["a"].lived == 255.0
    assert after(*[life("a", 1000.0, node="n1")] * 4)["a"].times == 1, "told several times"


def test_lives_are_of_their_zone_and_of_the_last_day() -> None:
    lives = after(life("a", 0.0), life("b", 100.0), life("a", FORGOTTEN_AFTER + 1.0))
    assert {zone: each.times for zone, each in lives.items()} == {"a": 1, "b": 1}


def test_a_node_that_lives_long_makes_earlier_short_lives_forgotten() -> None:
    lives = replace(BAD, since=NOW - 5000.0)
    seen = replace(job(n1="a", n2="b", launched=900.0), short_lives={"a": lives})
    (event,) = told(seen)
    assert (event.kind, event.data["zone"]) == (SHORT_LIFE_OVER, "a")
    assert event.message == "nodes in a last again: n1 has lived for 15 min"
    assert "a" not in after(life("a", NOW - 5000.0), event)
    assert told(replace(seen, machines={})) == []
    before = replace(seen, short_lives={"a": replace(lives, since=NOW - 899.0)})
    assert told(before) == [], "it was there before the first of them"
    decision = decide(replace(before, short_lives={"a": lives}), NOW - 300.0, POLICY)
    assert decision.wake_at == NOW - 900.0 + 3 * 260.0, "which nothing else would show"


def test_whoever_leads_next_knows_of_short_lives() -> None:
    mirror, keys = Mirror(Keys("run"), lambda: None), Keys("run")
    events = [life("a", NOW - ago) for ago in (900.0, 600.0, 300.0)]
    stored = (StoredValue(keys.event(str(n)), encode(e), 1, 1) for n, e in enumerate(events))
    mirror([Reset(tuple(stored), 1)])
    assert mirror.records().short_lives == after(*events)
    assert mirror.records().short_lives["a"].times == 3


# -- what follows --------------------------------------------------------------------------------


def test_a_zone_that_takes_nodes_soon_again_and_again_is_left_and_the_event_says_how_soon() -> None:
    seen = replace(job(n1="a", n2="a"), short_lives={"a": BAD})
    assert goes_to(seen) == "b"
    (event,) = (
        a.event for a in decide(seen, NOW, POLICY).actions if isinstance(a, Tell) and a.after
    )
    assert event.message.endswith(
        "in a nodes were taken 4 min after their launch, 3 times in a row"
    )
    assert event.data == {
        "zone": "b", "left": "a", "committed": 500, "lived": 240.0, "times": 3,
    }  # fmt: skip
    assert goes_to(replace(seen, short_lives={"a": replace(BAD, times=2)})) == ""
    assert goes_to(replace(seen, short_lives={"a": replace(BAD, at=NOW - 901.0)})) == ""


def test_a_zone_with_nodes_for_minutes_is_better_than_one_without() -> None:
    dry = LaunchFailures(3, NOW - 800.0, "no capacity", "capacity")
    failed = {("workers", "b"): dry, ("workers", "c"): dry}
    seen = replace(job(n1="a", n2="a"), short_lives={"a": BAD}, failed=failed)
    assert goes_to(seen) == ""
    for tries, again in ((3, 900.0), (4, 1800.0), (5, 3600.0), (9, 3600.0)):
        tried = replace(dry, count=tries, tries=tries, at=NOW - again)
        later = replace(seen, failed={**failed, ("workers", "c"): tried})
        assert goes_to(later) == "c"
        too_soon = replace(tried, at=NOW - again + 1.0)
        assert goes_to(replace(seen, failed={**failed, ("workers", "c"): too_soon})) == ""
    here = {("workers", "a"): replace(dry, at=NOW)}
    assert goes_to(replace(seen, desired=4, failed=here, short_lives={"b": BAD})) == "c"
    here[("workers", "c")] = replace(dry, at=NOW)
    assert goes_to(replace(seen, desired=4, failed=here, short_lives={"b": BAD})) == "b", (
        "the only one that may have any"
    )


def test_of_bad_zones_that_is_used_where_nodes_live_longest() -> None:
    all_bad = {"a": WORSE, "b": BAD, "c": replace(BAD, lived=250.0)}
    seen = replace(job(n1="a", n2="a"), short_lives=all_bad)
    assert goes_to(seen) == "c"
    assert (
        goes_to(replace(seen, short_lives={**all_bad, "a": replace(WORSE, lived=200.0)})) == ""
    ), "the difference is not worth it"


def test_nobody_who_trains_is_sent_to_a_zone_that_is_avoided() -> None:
    seen = job("b", n1="a", n2="b", n3="b", launched=400.0)
    went = [a for a in decide(seen, NOW, POLICY).actions if isinstance(a, Replace)]
    assert [each.instance for each in went] == ["n1"]
    others = {zone: replace(BAD, since=NOW) for zone in "abc"}
    stays = decide(replace(seen, short_lives=others), NOW, POLICY).actions
    assert not any(isinstance(each, Replace) for each in stays)


def test_a_zone_is_tried_ever_more_rarely() -> None:
    until = [short_lives.avoided_until(replace(BAD, times=times), POLICY) for times in range(12)]
    pauses = [each - BAD.at for each in until[3:]]
    assert until[:3] == [0.0, 0.0, 0.0]
    assert pauses[:3] == [900.0, 1800.0, 3600.0]
    assert all(before <= later for before, later in pairwise(pauses))
    assert pauses[-1] == POLICY.avoided_at_most


def test_people_are_told_of_the_zones_that_are_avoided() -> None:
    zones = {"a": BAD, "b": replace(BAD, times=1)}
    assert list(short_lives.lines(zones, NOW, POLICY)) == [
        "in a nodes were taken 4 min after their launch, 3 times in a row: "
        "other zones come first until 04:00 UTC"
    ]
    assert list(short_lives.lines(zones, NOW + 900.0, POLICY)) == []


lives = st.builds(
    ShortLives,
    st.integers(1, 20),
    st.integers(1, 20),
    st.floats(0.0, 900.0),
    st.floats(0.0, NOW),
    st.floats(0.0, NOW),
    st.floats(0.0, NOW),
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("abc"), lives),
    st.integers(1, 8),
    st.integers(0, 3),
    st.dictionaries(
        st.sampled_from([("workers", zone) for zone in "abc"]),
        st.builds(LaunchFailures, st.integers(1, 9), st.floats(NOW - 9000.0, NOW)),
    ),
)
def test_no_launch_is_ever_held_back_for_short_lives(
    known: dict[str, ShortLives],
    desired: int,
    there: int,
    failed: dict[tuple[str, str], LaunchFailures],
) -> None:
    nodes = {f"n{each}": "a" for each in range(there)}
    good = replace(job(launched=9000.0, **nodes), desired=desired, failed=failed)
    bad = replace(good, short_lives=known)
    assert sizes(bad, NOW, POLICY) == sizes(good, NOW, POLICY)
    chosen = goes_to(bad)
    if chosen and not goes_to(good):
        assert short_lives.is_avoided(bad, "a", NOW, POLICY)
        assert failed.get(("workers", chosen), LaunchFailures(0, 0.0)).count < 3 or (
            NOW - failed["workers", chosen].at >= POLICY.avoided_for
        )
