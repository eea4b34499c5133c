"""Limits of `up` that contradict what there is: one line that names the figures."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.aws.cluster_requests import job
from support.aws.fake_services import fake_aws

from spotelastic.aws.artifacts.code_archive import Archive
from spotelastic.aws.artifacts.left_out import LeftOut
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute.estimate import Estimate, Line
from spotelastic.aws.compute.instance_types import InstanceType, shipped
from spotelastic.aws.compute.speeds import relative
from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.cli.render import plan_view
from spotelastic.client.bringing_up import preflight
from spotelastic.client.bringing_up.plan import check_limits
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.controller.accounting import usage
from spotelastic.controller.accounting.usage import Usage
from spotelastic.errors import UsageError
from spotelastic.model.counting import HOUR
from spotelastic.model.job import Capacity, JobSpec, Settings
from spotelastic.model.replication import Replication


def told(capacity: Capacity, *, price: float = 0.5, linger: float | None = 600.0) -> list[str]:
    """For 1.20 USD an hour with two nodes."""
    lines = (Line("worker", 2, 4, price), Line("control node", 3, 3, 0.2 / 3))
    found: Any = SimpleNamespace(
        types=(InstanceType("g5.xlarge", 4, 1, "A10G", "x86_64"),),
        speeds={},
        options=(),
        ranking=(),
        zones=("a",),
        warnings=(),
        obstacles=(),
        price=price,
        estimate=Estimate(lines),
    )
    spec = job("demo", settings=Settings(2, 4), capacity=capacity, linger=linger)
    wanted = ValidatedJob(JobConfig(), spec, Archive("", b"", 0), Requirement(), {})
    check_limits(wanted, found)
    return list(plan_view.headline(wanted, found, ""))


def test_a_cost_that_pays_for_less_than_a_boot_and_an_end_is_refused_with_the_figures() -> None:
    with pytest.raises(UsageError) as refused:
        told(Capacity(max_cost=0.05))
    assert str(refused.value) == (
        "--max-cost 0.05: pays for 2.5 min of 2 nodes (--min) and the control nodes, 1.20 USD an "
        "hour: 2 min to boot and 3 min to end take 0.10 USD: give more than that"
    )
    assert told(Capacity(max_cost=0.11))


def test_prices_that_are_not_known_contradict_no_limit() -> None:
    assert told(Capacity(max_cost=0.001), price=0.0)


def test_a_node_that_is_to_be_kept_for_no_time_is_refused() -> None:
    with pytest.raises(UsageError, match="--keep-failed: with --linger 0 the cluster and its"):
        told(Capacity(keep_failed=True), linger=0.0)
    for linger in (None, 1.0):
        assert told(Capacity(keep_failed=True), linger=linger)
    assert told(Capacity(), linger=0.0)


def test_another_limit_than_before_must_be_more_than_the_cluster_has_cost_and_takes_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = Usage("c", "t3.small", False, 0.0, None, 2.0, 2.0, "control")
    cost = usage.cost("demo", {"c": control}, None, HOUR, None)
    monkeypatch.setattr(preflight, "cost_of", lambda _: cost)
    capacity = Capacity(max_cost=1.5)
    spec = JobSpec("demo", "run", "train.py", (), "", Settings(1, 1), "", (), capacity=capacity)
    known = ClusterRecord(fake_aws(), spec, "bucket")
    for limit in (1.0, 2.0, 2.09):
        with pytest.raises(
            UsageError, match=rf"--max-cost {limit:g}: demo has cost \$2.00 already"
        ):
            preflight.check_spent(known, limit)
    for fine in (None, 1.5, 2.2):
        preflight.check_spent(known, fine)


@pytest.mark.parametrize(
    ("zones", "replicate", "told"),
    [("spread", "auto", True), ("spread", "off", False), ("pack", "auto", False)],
)
def test_the_plan_says_where_a_node_has_no_partner(zones: Any, replicate: str, told: bool) -> None:
    settings = Settings(2, 4, replicate=Replication.parse(replicate))
    spec = job("demo", settings=settings, capacity=Capacity(zones=zones), linger=600.0)
    wanted = ValidatedJob(JobConfig(), spec, Archive("", b"", 0), Requirement(), {})
    found: Any = SimpleNamespace(
        options=(), ranking=(), speeds={}, estimate=Estimate((Line("worker", 2, 4, 0.5),))
    )
    planned: Any = SimpleNamespace(is_up=False, resources=(), changes=(), regions=(), moves=None)
    lines = "\n".join(plan_view.plan(wanted, found, planned, ""))
    assert ("alone in its zone has no partner" in lines) is told


def test_the_plan_says_how_unlike_nodes_share_a_batch() -> None:
    types = "g5.xlarge", "g6e.12xlarge"
    spec = job("demo", linger=600.0, virtual_ranks=True)
    wanted = ValidatedJob(JobConfig(), spec, Archive("", b"", 0), Requirement(), {})
    found: Any = SimpleNamespace(
        options=(),
        ranking=(),
        speeds=relative(types),
        types=[kind for kind in shipped() if kind.name in types],
        estimate=Estimate((Line("worker", 2, 4, 0.5),)),
    )
    planned: Any = SimpleNamespace(is_up=False, resources=(), changes=(), regions=(), moves=None)
    lines = [*plan_view.plan(wanted, found, planned, "")]
    assert (
        "shares of a batch, by peak rates of GPUs (measured while it trains): "
        "g5.xlarge 1, g6e.12xlarge 21"
    ) in lines
    assert "a virtual rank has to fit into 24 GB, the memory of a GPU of g5.xlarge" in lines


def test_what_git_ignores_is_told_with_the_line_that_brings_it() -> None:
    data = LeftOut(3, 12_400_000, "data/train.bin", 8_000_000, "!/data/", True)
    assert plan_view.not_shipped(data) == (
        "3 files ignored by git will not be shipped to the nodes: 12.4 MB, the largest "
        "data/train.bin (8 MB); a line `!/data/` in .spotelasticignore ships that; put large data "
        "in a bucket (--read)"
    )
    one = LeftOut(1, 300, "a.pkl", 300, "!/a.pkl", True)
    assert (
        "1 file ignored by git will not be shipped to the nodes: a.pkl (300 B); "
        in plan_view.not_shipped(one)
    )
