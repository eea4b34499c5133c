"""What the controller's decisions hold to, whatever it observes."""

from hypothesis import given
from hypothesis import strategies as st
from support.clusters.observations import (
    GROUP,
    NOW,
    POLICY,
    drain,
    machine,
    message,
    node,
    only,
)

from spotelastic.cloud.events import Malformed, SpotWarning, StateChange
from spotelastic.cloud.model import GroupMember, InstanceState, WorkerGroup
from spotelastic.controller.decisions.decide import decide, settled
from spotelastic.controller.model.observation import (
    CompleteDrain,
    Discard,
    Observation,
    Replace,
    SetDesired,
)
from spotelastic.model.job import Job

STATES: tuple[InstanceState, ...] = ("pending", "running", "terminated")

ids = st.sampled_from("abcdef")
places = st.builds(
    GroupMember, ids, st.sampled_from(["Pending", "InService", "Terminating:Wait", "Terminating"])
)
events = st.one_of(
    st.builds(SpotWarning, st.sampled_from(["1", "2"]), st.just(999.0), ids),
    st.builds(StateChange, st.sampled_from(["3", "4"]), st.just(999.0), ids, st.just("terminated")),
    st.builds(Malformed, st.just("no JSON")),
)
observations = st.builds(
    Observation,
    desired=st.integers(1, 6),
    since=st.just(500.0),
    job=st.none() | st.builds(Job, st.sampled_from(["running", "succeeded"]), st.just(900.0)),
    group=st.none()
    | st.builds(
        WorkerGroup,
        st.just(GROUP),
        st.integers(0, 6),
        st.lists(places, max_size=6, unique_by=lambda place: place.instance).map(tuple),
    ),
    machines=st.dictionaries(ids, st.sampled_from(STATES)).map(
        lambda states: {id: machine(id, state) for id, state in states.items()}
    ),
    nodes=st.sets(ids).map(lambda names: {id: node(id) for id in names}),
    drains=st.sets(ids).map(lambda names: {id: drain(id) for id in names}),
    messages=st.lists(events, max_size=4).map(
        lambda found: tuple(message(event, str(n)) for n, event in enumerate(found))
    ),
)


@given(observations)
def test_every_message_gets_exactly_one_fate_and_goes_after_what_it_caused(
    seen: Observation,
) -> None:
    actions = decide(seen, NOW, POLICY).actions
    discarded = [action.message for action in actions if isinstance(action, Discard)]
    assert sorted(m.receipt for m in discarded) == sorted(m.receipt for m in seen.messages)
    first = next((n for n, a in enumerate(actions) if isinstance(a, Discard)), len(actions))
    assert all(isinstance(action, Discard) for action in actions[first:])


@given(observations)
def test_only_members_of_the_group_that_stay_are_replaced_and_each_once(seen: Observation) -> None:
    replaced = [a.instance for a in decide(seen, NOW, POLICY).actions if isinstance(a, Replace)]
    assert len(replaced) == len(set(replaced))
    for instance in replaced:
        place = seen.group.member(instance) if seen.group else None
        assert place is not None
        assert not place.leaving
        assert seen.machines[instance].state in ("pending", "running") or not seen.ended


@given(observations)
def test_no_instance_is_launched_after_the_end(seen: Observation) -> None:
    """Ending an instance launches another as long as the group's size asks for one."""
    decision = decide(seen, NOW, POLICY)
    if seen.ended and seen.group is not None and seen.group.desired > 0:
        assert only(decision, Replace) == []
        assert [a.size for a in decision.actions if isinstance(a, SetDesired)] == [0]


@given(observations)
def test_a_settled_cluster_gives_nothing_to_do_but_messages_and_drains(seen: Observation) -> None:
    if settled(seen, NOW, POLICY) and not seen.messages and not seen.drains and not seen.ended:
        assert only(decide(seen, NOW, POLICY), SetDesired, CompleteDrain) == []
