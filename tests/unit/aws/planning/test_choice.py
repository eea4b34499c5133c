"""Which types a job gets where only its needs are said."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.aws.compute.instance_types import InstanceType, traits
from spotelastic.aws.compute.quotas import Allowance, NodeDemand
from spotelastic.aws.planning.type_selection import Requirement, best, check, options
from spotelastic.errors import EnvironmentFailure, UsageError

A100 = InstanceType("p4d", 96, 8, "A100", "x86_64", 40960)
A100_80 = replace(A100, name="p4de", gpu_memory_mib=81920)
H100 = InstanceType("p5", 192, 8, "H100", "x86_64", 81920)
L4 = InstanceType("g6", 4, 1, "L4", "x86_64", 22888)
USD = {"p4d": 10.0, "p4de": 13.0, "p5": 30.0, "g6": 0.3}


TWO = NodeDemand(2, 2)


def free(vcpus: int, *, spot: bool = True) -> Allowance:
    return Allowance("P", "L-1" if spot else "L-2", spot, "eu-x", vcpus, 0)


def plenty(name: str, *, spot: bool) -> Allowance:
    return free(10_000)


def test_the_memory_of_a_gpu_is_compared_as_ec2_rounds_it() -> None:
    assert Requirement(1, int(24e9)).fits(L4)
    assert not Requirement(1, int(24.1e9)).fits(L4)
    assert Requirement(8, int(40e9)).fits(A100)
    assert not Requirement(4).fits(A100)
    assert not Requirement().fits(replace(L4, gpus=0))


def test_the_cheapest_kind_is_taken_with_all_of_its_types_that_are_not_twice_as_dear() -> None:
    dear, other = replace(A100, name="p4dear"), replace(A100, name="p4d.other")
    usd = {**USD, "p4dear": 20.1, "p4d.other": 19.9}
    found = options([H100, dear, A100_80, other, A100], usd, plenty, NodeDemand(8, 8))
    taken = best(found, Requirement(8), "eu-x").types
    assert [kind.name for kind in taken] == ["p4d", "p4d.other"]
    assert [option.types[0].name for option in found] == ["p4d", "p4de", "p5"]


def test_a_kind_that_no_quota_allows_is_passed_over_and_says_so() -> None:
    def allowed(name: str, *, spot: bool) -> Allowance:
        return free(96 if name.startswith("p4") else 10_000)

    found = options([A100, A100_80, H100], USD, allowed, TWO)
    assert best(found, Requirement(8), "eu-x").types == (H100,)
    assert found[1].refusal.startswith("quota allows 1 of 2 spot p4d")
    with pytest.raises(EnvironmentFailure, match=r"no type with --gpus 8 is within .* 0 of 2 spot"):
        best(options([A100], USD, lambda _, spot: free(0), TWO), Requirement(8), "eu-x")


@pytest.mark.parametrize(
    ("nodes", "spot", "on_demand", "refused"),
    [
        (NodeDemand(2, 8, 2), 0, 192, []),
        (NodeDemand(2, 8, 2), 96, 96, []),
        (NodeDemand(2, 0, 2), 0, 192, []),
        (NodeDemand(2, 8, 2), 0, None, []),
        (NodeDemand(2, 8, 2), 0, 96, ["0 of 8 spot p4d", "1 of 2 on-demand p4d"]),
        (NodeDemand(2, 1, 1), 0, 192, ["0 of 1 spot p4d", "1 of 1 on-demand p4d"]),
        (NodeDemand(2, 0, 2), 960, 96, ["1 of 2 on-demand p4d"]),
        (NodeDemand(2, 8), 0, 192, ["0 of 8 spot p4d"]),
    ],
)
def test_what_spot_lacks_may_be_bought_on_demand_as_far_as_its_own_quota_goes(
    nodes: NodeDemand, spot: int, on_demand: int | None, refused: list[str]
) -> None:
    def allowed(_: str, *, spot: bool) -> Allowance | None:
        vcpus = left[spot]
        return None if vcpus is None else free(vcpus, spot=spot)

    left = {True: spot, False: on_demand}
    (option,) = options([A100], USD, allowed, nodes)
    told = [each.partition(" (")[0] for each in option.refusal.split("; and ")]
    assert [each.removeprefix("quota allows ") for each in told if each] == refused


def test_a_quota_that_is_not_known_forbids_nothing() -> None:
    (option,) = options([A100], USD, lambda _, spot: None, NodeDemand(100, 100))
    assert not option.refusal


def test_where_nothing_fits_it_is_told_what_was_asked_for() -> None:
    with pytest.raises(EnvironmentFailure, match="no type with --gpus 3 --gpu-memory 40GB"):
        best((), Requirement(3, int(40e9)), "eu-x")


def test_the_types_that_a_cluster_has_must_have_what_is_required() -> None:
    check([A100, A100_80], Requirement(8, int(40e9)))
    with pytest.raises(UsageError, match=r"--gpus 8 .* has g6 with 1 GPUs of 24 GB"):
        check([A100, L4], Requirement(8, int(20e9)))


kinds = st.lists(
    st.builds(
        InstanceType,
        st.uuids().map(str),
        st.integers(1, 192),
        st.integers(1, 8),
        st.sampled_from(["A100", "H100"]),
        st.sampled_from(["x86_64", "arm64"]),
    ),
    min_size=1,
)


@given(kinds, st.data())
def test_types_of_one_option_may_always_share_a_job(
    found: list[InstanceType], data: st.DataObject
) -> None:
    usd = {kind.name: data.draw(st.floats(0.0, 50.0)) for kind in found}
    chosen = options(found, usd, plenty, NodeDemand(1, 1))
    assert all(len({traits(kind) for kind in option.types}) == 1 for option in chosen)
    assert len({traits(option.types[0]) for option in chosen}) == len(chosen)
    priced = [usd[kind.name] for kind in found if usd[kind.name]]
    assert bool(chosen) == bool(priced)
    if chosen:
        assert chosen[0].usd == min(priced)
        assert all(usd[kind.name] <= 2 * option.usd for option in chosen for kind in option.types)
