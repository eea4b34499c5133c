"""Looks up what regions offer to a job that moves between them by itself."""

from collections.abc import Callable, Mapping, Sequence

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.compute import offers, placement_scores
from spotelastic.aws.compute.placement_scores import FRESH_FOR, MEANINGFUL
from spotelastic.clock import Clock, steady
from spotelastic.controller.model.regions import RegionOffer
from spotelastic.errors import SpotelasticError
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import Status

GIVES_MAX, GIVES_MIN = 7, 4
"""EC2's placement scores, from 1 to 10, from which a region is taken to give max and min nodes."""
COMING = frozenset({"pending", "joining", "training", "waiting"})
"""States of worker nodes that are here to stay."""

Of = Callable[[str], Aws]
"""Returns a region of the account."""


def given(status: Status) -> int:
    """Return how many nodes the job has here, without those that leave (pure)."""
    return sum(
        node.role == "worker" and node.state in COMING and node.leaves_at is None
        for node in status.nodes
    )


def promised(score: int | None, low: int, high: int, types: int = MEANINGFUL) -> int | None:
    """Return how many nodes a region gives to a job of so many types (pure).

    The region's placement score is `score`.

    AWS asks to take scores as advice. So they decide in three steps, and a region without one is
    one of which nothing is known: None. Of few types, a low score says nothing.
    """
    if score is None or (types < MEANINGFUL and score < GIVES_MIN):
        return None
    return high if score >= GIVES_MAX else low if score >= GIVES_MIN else 0


class RegionMarket:
    """Prices and placement scores of regions.

    Scores are kept for a while: AWS limits how many configurations can be asked a day.
    """

    def __init__(self, of: Of, home: str, clock: Clock = steady) -> None:
        self._of, self._home, self._clock = of, home, clock
        self._asked_at = float("-inf")
        self._scores: Mapping[str, int] = {}

    def offers(
        self, spec: JobSpec, names: Sequence[str], here: int, seconds: float, usd: float
    ) -> tuple[RegionOffer, ...]:
        """Return what each region offers. `here`: the nodes that the job has in its own one.

        A move takes that many seconds and costs that many US dollars. What a region does not tell
        is not known.
        """
        size = spec.settings
        scores = self._scored(spec.instance_types, size.max_nodes, names)
        return tuple(
            RegionOffer(
                name,
                here
                if name == self._home
                else promised(
                    scores.get(name), size.min_nodes, size.max_nodes, len(spec.instance_types)
                ),
                self._price(name, spec.instance_types),
                seconds,
                usd,
            )
            for name in names
        )

    def _price(self, region: str, types: Sequence[str]) -> float:
        """Return the price of the cheapest spot node; 0 if not known."""
        try:
            found = offers.spot_prices(self._of(region), types)
        except SpotelasticError:
            return 0.0
        return min((usd for zones in found.values() for usd in zones.values()), default=0.0)

    def _scored(self, types: Sequence[str], nodes: int, names: Sequence[str]) -> Mapping[str, int]:
        """Return the best zone's score by region."""
        if self._clock() - self._asked_at > FRESH_FOR:
            self._scores, self._asked_at = self._ask(types, nodes, names), self._clock()
        return self._scores

    def _ask(self, types: Sequence[str], nodes: int, names: Sequence[str]) -> dict[str, int]:
        best: dict[str, int] = {}
        asked = placement_scores.ask(self._of(self._home), types, nodes, names)
        for (region, _), score in asked.items():
            best[region] = max(score, best.get(region, 0))
        return best
