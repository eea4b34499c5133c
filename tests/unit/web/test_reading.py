"""How often a cluster is asked for what a page shows."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from support.clusters.published_cluster import BEGAN, COST, EVENTS, POINTS, REPORT, STATUS

from spotelastic.client.cluster import Cluster
from spotelastic.cloud.bucket import USAGE
from spotelastic.controller.accounting.usage import Usage
from spotelastic.errors import Unavailable
from spotelastic.model.validity import Validity
from spotelastic.web.reading import MANY, OFTEN, SELDOM, SOMETIMES, ClusterReader

USED = Usage("i-1", "g6.xlarge", True, BEGAN, BEGAN + 60.0, 0.25, 1.0)


class AskedCluster:
    """A cluster that counts what it is asked."""

    name = "demo"

    def __init__(self, events: int = 1) -> None:
        self.asked: list[str] = []
        self.many = EVENTS[:1] * events
        self.committed = STATUS.committed
        settings = SimpleNamespace(min_nodes=1, max_nodes=2)
        spec = SimpleNamespace(
            settings=settings, script="train.py", storage="s3://b/demo", validity=Validity()
        )
        objects = SimpleNamespace(
            report=lambda: self.says("report", REPORT),
            get=lambda name: self.says(name, msgspec.json.encode([USED])),
        )
        self.record = SimpleNamespace(name="demo", spec=spec, objects=objects)
        self.target = SimpleNamespace(
            check=lambda: None,
            known=lambda _: self.says("known", self.record),
            storage=self.fails,
            arguments_of=lambda name: name,
        )

    def says(self, what: str, answer: Any) -> Any:
        self.asked.append(what)
        return answer

    def fails(self, url: str) -> Any:
        self.asked.append("storage")
        raise Unavailable(f"{url} does not answer")

    def status(self) -> Any:
        return self.says("status", replace(STATUS, committed=self.committed))

    def events(self) -> Any:
        return self.says("events", self.many)

    def regions(self) -> Any:
        return self.says("regions", None)

    def curve(self) -> Any:
        return self.says("curve", POINTS)

    def measured(self) -> Any:
        return self.says("measured", {})

    def cost(self) -> Any:
        return self.says("cost", COST)


def asked(events: int, *times: float) -> list[set[str]]:
    """What is asked at each of these times."""
    cluster, clock = AskedCluster(events), [0.0]
    reader = ClusterReader(cast(Cluster, cluster), lambda: clock[0])
    found = []
    for at in times:
        clock[0] = at
        cluster.asked.clear()
        reader.read()
        found.append(set(cluster.asked))
    return found


def test_the_status_is_new_and_the_rest_as_new_as_it_is_worth() -> None:
    sometimes = {"status", "events", "report", "curve", "measured", "cost", "regions", USAGE}
    everything = sometimes | {"known", "storage"}
    late = 0.1  # what the few rows add
    assert asked(1, 0.0, 1.0, OFTEN + late, SOMETIMES + late, SELDOM + 2 * late) == [
        everything,
        {"status"},
        {"status", "events", "report"},
        sometimes,
        everything,
    ]


def test_a_long_list_is_read_less_often() -> None:
    first, soon, later = asked(10 * MANY, 0.0, OFTEN + 9.0, OFTEN + 10.0)
    assert ("events" in first, "events" in soon, "events" in later) == (True, False, True)


def test_checkpoints_are_listed_again_as_soon_as_the_status_has_a_newer_one() -> None:
    cluster, clock = AskedCluster(), [0.0]
    reader = ClusterReader(cast(Cluster, cluster), lambda: clock[0])
    listed = []
    for at, committed in ((0.0, 60), (1.0, 60), (2.0, 80), (3.0, 80), (2.0 + SELDOM, 80)):
        clock[0], cluster.committed = at, committed
        cluster.asked.clear()
        reader.read()
        listed.append("storage" in cluster.asked)
    assert listed == [True, False, True, False, True]


def test_a_storage_that_does_not_answer_leaves_the_rest() -> None:
    reader = ClusterReader(cast(Cluster, AskedCluster()), lambda: 0.0)
    published = reader.read()
    assert published.checkpoints is None
    assert published.rates == ((BEGAN, 0.25), (BEGAN + 60.0, 0.0))
    assert (published.status, published.sizes, published.is_gone) == (STATUS, (1, 2), False)
