"""Who keeps whose replica: living pairs stay, within a zone, and nobody is left out."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.replication import Replication
from spotelastic.model.round import Acknowledgement, Member, Partner, Round
from spotelastic.rendezvous import rounds
from spotelastic.rendezvous.decision import WriteRound
from spotelastic.rendezvous.partners import partners
from spotelastic.rendezvous.view import LiveNode, RunState

PLACES = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["h1", "h2", "h3", "h4"])), max_size=12
)


def members(names: Sequence[str], places: Sequence[tuple[str, str]] = ()) -> list[Member]:
    places = places or [("a", f"10.0.0.{number}") for number in range(len(names))]
    return [
        Member(name, f"{name}-1", slot, host, zone, 1)
        for slot, (name, (zone, host)) in enumerate(zip(names, places, strict=True))
    ]


def numbered(places: Sequence[tuple[str, str]]) -> list[Member]:
    return members([f"n{number}" for number in range(len(places))], places)


def test_two_nodes_keep_each_others() -> None:
    assert partners(members("ab"), {}) == {"a": "b", "b": "a"}


def test_a_node_alone_has_no_partner() -> None:
    assert partners(members("a"), {}) == {}


def test_a_newcomer_opens_a_pair_into_a_ring_and_one_of_it_keeps_what_it_has() -> None:
    found = partners(members("abc"), {"a": "b", "b": "a"})
    assert found == {"a": "b", "b": "c", "c": "a"}
    # The fourth one takes the third out of the ring again.
    assert partners(members("abcd"), found) == {"a": "b", "b": "a", "c": "d", "d": "c"}


def test_those_that_lost_their_partners_find_each_other_and_other_pairs_stay() -> None:
    before = partners(members("abcdef"), {})
    lost = ("a", next(name for name in "bcdef" if name != before["a"]))
    left = [name for name in "abcdef" if name not in lost]
    found = partners(members(left), before)
    widows = {before[name] for name in lost}
    stayed = set(left) - widows
    assert {name: found[name] for name in stayed} == {name: before[name] for name in stayed}
    assert {found[name] for name in widows} == widows


def test_a_node_under_notice_is_nobodys_partner() -> None:
    before = {"a": "b", "b": "a", "c": "d", "d": "c"}
    found = partners(members("abcd"), before, noticed={"b"})
    assert "b" not in found and "b" not in found.values()
    assert found["c"] == "d" and set(found) == set(found.values()) == {"a", "c", "d"}


def test_nodes_of_one_machine_are_partners_only_if_there_is_no_other() -> None:
    one_machine = [("a", "h1"), ("a", "h1")]
    assert partners(members("ab", one_machine), {}) == {"a": "b", "b": "a"}
    found = partners(members("abcd", [*one_machine, ("a", "h2"), ("a", "h2")]), {})
    assert {found["a"], found["b"]} == {"c", "d"}


@given(PLACES, st.sets(st.integers(0, 11)))
def test_each_has_one_partner_in_its_zone_unless_it_is_alone_there(
    places: list[tuple[str, str]], noticed: set[int]
) -> None:
    all_of_them = numbered(places)
    warned = {f"n{number}" for number in noticed}
    found = partners(all_of_them, {}, warned)
    by_name = {member.node: member for member in all_of_them}
    zones = Counter(member.zone for member in all_of_them if member.node not in warned)
    paired = {m.node for m in all_of_them if m.node not in warned and zones[m.zone] > 1}
    assert set(found) == paired and sorted(found.values()) == sorted(paired)
    for name, partner in found.items():
        assert name != partner and by_name[name].zone == by_name[partner].zone
    for zone, count in zones.items():
        mutual = [n for n in found if by_name[n].zone == zone and found[found[n]] == n]
        assert count == 1 or len(mutual) == count - 3 * (count % 2)


@given(PLACES, PLACES, st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_pairs_that_live_stay_but_for_one_that_takes_in_an_odd_node(
    places: list[tuple[str, str]],
    more: list[tuple[str, str]],
    lost: set[int],
    noticed: set[int],
) -> None:
    before = partners(numbered(places), {})
    everybody = numbered([*places, *more])
    here = [m for number, m in enumerate(everybody) if number not in lost]
    warned = {f"n{number}" for number in noticed}
    found = partners(here, before, warned)
    staying = {member.node for member in here} - warned
    pairs = {
        name for name in staying if before.get(name) in staying and before.get(before[name]) == name
    }
    zone_of = {member.node: member.zone for member in here}
    changed = [name for name in pairs if found.get(name) != before[name]]
    assert len({zone_of[name] for name in changed}) == len(changed), "one replica of each zone"
    for name in changed:
        assert found[found[name]] != name, "its pair is a ring now"
    assert partners(here, found, warned) == found, "nothing changes without need"


@given(PLACES)
def test_partners_are_on_two_machines_where_no_machine_has_half_of_them(
    places: list[tuple[str, str]],
) -> None:
    places = [("a", host) for _, host in places]
    assume(len(places) > 1 and len(places) % 2 == 0)
    assume(max(Counter(host for _, host in places).values()) * 2 <= len(places))
    nodes = numbered(places)
    host = {member.node: member.address for member in nodes}
    assert all(host[name] != host[partner] for name, partner in partners(nodes, {}).items())


# -- in a round ----------------------------------------------------------------------------------


def started(replicate: str, *, drained: str = "", before: tuple[Partner, ...] = ()) -> Round:
    """The round of four nodes that begins when all of them are ready."""
    of = members("abcd")
    proposed = Round(2, "r2", "proposed", tuple(of), "start", "", partners=before)
    leaves = Notice(InterruptionKind.SPOT_INTERRUPTION, drained, "imds", 0.0, 0.0, 1e6)
    seen = RunState(
        settings=Settings(4, 4, replicate=Replication.parse(replicate)),
        round=proposed,
        nodes={
            m.node: LiveNode(Node(m.node, m.incarnation, m.address, m.zone, Fingerprint()), 1, 0.0)
            for m in of
        },
        acks={
            m.node: Acknowledgement(
                m.node, m.incarnation, "r2", "ready", f"{m.node}:1", store="" if m.slot else "s:1"
            )
            for m in of
        },
        drains={drained: Drain(drained, leaves)} if drained else {},
    )
    actions = rounds.decide(seen, 1.0, lambda: "r3").actions
    [write] = [action for action in actions if isinstance(action, WriteRound)]
    assert write.round.phase == "started"
    return write.round


def test_a_round_names_the_partners_and_the_daemons_that_they_ask() -> None:
    before = (Partner("d", "a", "a:9"), Partner("a", "d", "d:9"))
    found = {partner.of: partner for partner in started("auto", before=before).partners}
    assert (found["a"].node, found["d"].node, found["b"].node) == ("d", "a", "c")
    assert found["a"].daemon == "a:1", "where it listens now"


def test_a_node_that_trains_on_under_notice_has_no_partner_in_the_round() -> None:
    made = started("100MB", drained="b")
    assert {partner.of for partner in made.partners} == {"a", "c", "d"}
    assert "b" not in {partner.node for partner in made.partners}


def test_without_the_setting_there_are_no_partners() -> None:
    assert started("off").partners == ()
