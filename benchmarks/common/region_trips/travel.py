"""Describes a job that may move between regions in a replay, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotelastic.controller.model.regions import RegionPolicy
from spotelastic.replay.outcome import ReplayOutcome, UpperBound
from spotelastic.replay.scenario import Scenario

SCORES_EVERY = 300.0
"""Seconds between two looks at what other regions promise."""


@dataclass(frozen=True, slots=True)
class Travel:
    """What a move takes and costs, and when the job moves."""

    policy: RegionPolicy
    cluster: float = 180.0
    """Seconds in which a cluster is made in another region, without the boot of its nodes."""
    copy: float = 1e9
    """Bytes per second between the buckets of two regions."""
    copy_usd: float = 0.02e-9
    """US dollars for a byte that is copied to another region."""
    scores: bool = True
    """Whether the job knows how many nodes the other regions had within the last five minutes."""
    spot_usd: Mapping[str, float] = field(default_factory=dict)
    """US dollars for an hour of a spot node, by region, where it is not the scenario's."""

    def makes_within(self, scenario: Scenario) -> float:
        """Return the seconds from the last commit until nodes can be launched elsewhere.

        The copy is made beside the cluster.
        """
        return max(self.cluster, scenario.state / self.copy)

    def pause(self, scenario: Scenario) -> float:
        """Return the seconds without a step that a move is expected to take."""
        times = scenario.machines
        restored = scenario.fetched_within() + scenario.copied_within
        return self.makes_within(scenario) + times.boot + times.start + restored

    def usd(self, region: str, scenario: Scenario) -> float:
        """Return the US dollars for an hour of a spot node there, whoever uses it."""
        return self.spot_usd.get(region, scenario.machines.spot_usd)

    def price(self, scenario: Scenario) -> float:
        """Return the US dollars for the copy of one move."""
        return scenario.state * self.copy_usd


@dataclass(frozen=True, slots=True)
class RegionMove:
    """One move of the job."""

    at: float
    """When it was decided, in seconds from the beginning of the traces."""
    arrived: float
    """When nodes could be launched in the new region."""
    left: str
    region: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegionsOutcome:
    """How a job fared under one policy that could use several regions."""

    outcome: ReplayOutcome
    """Its goodput is of the bound: the best region at each moment."""
    hours: float
    """Hours that the traces have in common."""
    useful_steps: int
    """Steps that count."""
    moves: tuple[RegionMove, ...] = ()
    hours_in: Mapping[str, float] = field(default_factory=dict)
    """Hours that the job was in each region."""

    @property
    def steps_per_hour(self) -> float:
        """Steps that count, in an hour of the traces."""
        return self.useful_steps / self.hours

    @property
    def steps_per_usd(self) -> float:
        """Steps that count, for a US dollar; 0 where nothing was paid."""
        usd = self.outcome.bill.usd
        return self.useful_steps / usd if usd else 0.0


@dataclass(frozen=True, slots=True)
class RegionsBound:
    """What the best region at each moment would give a job that moves for nothing, in no time."""

    bound: UpperBound
    hours: float
    step: float
    """Seconds per step."""

    @property
    def steps_per_hour(self) -> float:
        """Steps in an hour of the traces."""
        return self.bound.seconds / self.step / self.hours
