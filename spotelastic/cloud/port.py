"""The port "where nodes come from": what the controller and the agents need of a cloud.

A cloud is supported by one object for each of these protocols. They are few and small on purpose:
whatever a provider does beyond them (networks, images, roles, what `up` creates) is its own matter.

Every method may raise `Unavailable` if the cloud does not answer, and `EnvironmentFailure` if it
refuses. The caller tries again later, so that every method that changes something is idempotent:
what is done already, or is gone, is no error. What is shown may be some seconds old, and older than
what was shown before: the caller remembers what it has done.

`aws/provider/` implements these with AWS's API, which the local cloud emulates; `memory/` holds
everything in memory. `tests/contract/test_capacity_provider.py` holds for all of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.model import GroupNames, Instance, LaunchQuotas, WorkerGroup, ZoneOffer
from spotelastic.model.notice import Notice
from spotelastic.model.requests.command import Command
from spotelastic.notifications.notification import Receiver
from spotelastic.notifications.notifier import FindReceivers

T_co = TypeVar("T_co", covariant=True)


class CapacityProvider(Protocol):
    """The worker groups and instances of one cluster. Thread-safe.

    A group launches what it lacks by itself. An instance that it is told to end stays `DRAINING`
    until `complete_drain`, or until its time for that is over.
    """

    @property
    def names(self) -> GroupNames:
        """The names of the cluster's groups."""

    # -- observe ---------------------------------------------------------------------------------

    def groups(self) -> Mapping[str, WorkerGroup]:
        """Return the worker groups that exist, by name."""

    def instances(self) -> tuple[Instance, ...]:
        """Return the cluster's instances, for a while also those that have ended."""

    def console(self, instance: str) -> str:
        """Return the end of what the instance wrote while it booted; "" if nothing is known yet."""

    # -- instances -------------------------------------------------------------------------------

    def replace(self, instance: str) -> None:
        """End an instance of a group, which launches another one: its desired size stays."""

    def remove(self, instance: str) -> None:
        """End an instance of a group, and shrink the group by one.

        Not for an instance that is leaving already: AWS may then shrink the group once more.
        """

    def complete_drain(self, group: str, instance: str) -> None:
        """Let the group end an instance that has drained."""

    def end(self, instances: Sequence[str]) -> None:
        """End instances at once, whether in a group or not."""

    # -- groups ----------------------------------------------------------------------------------

    def set_desired(self, group: str, desired: int) -> None:
        """Set the number of instances that the group keeps."""

    def set_subnets(self, group: str, subnets: Sequence[str]) -> None:
        """Set the subnets in which the group launches from now on; existing instances stay."""

    def resume(self, group: str) -> None:
        """Let the group launch again."""

    def postpone(self, until: float) -> None:
        """Keep the groups alive until then (seconds since the epoch).

        At that time the cloud itself empties them, unless a controller has postponed it again.
        """

    def tear_down(self) -> None:
        """Delete the cluster, from one of its own control nodes. The bucket's objects stay."""

    # -- where to launch -------------------------------------------------------------------------

    def zones(self, subnets: Sequence[str]) -> tuple[ZoneOffer, ...]:
        """Return the zones of the subnets, each with its own subnets, without price and score."""

    def offers(
        self, zones: Iterable[ZoneOffer], types: Sequence[str], nodes: int
    ) -> tuple[ZoneOffer, ...]:
        """Return the zones with the price of a node and the placement score for so many nodes."""

    def quotas(self, types: Sequence[str]) -> LaunchQuotas:
        """Name the quotas that nodes of these types count against. Asks nobody."""


class Prices(Protocol):
    """Hourly prices in US dollars; 0 if a price is not known."""

    def spot(self, type: str, zone: str) -> float:
        """Return the present price of a spot instance."""

    def on_demand(self, type: str) -> float:
        """Return the price of an instance on demand."""

    def besides(self, role: str, *, public: bool) -> float:
        """Return the price of a node's disks, and of its address if that is public."""


class ClusterPrices(Prices, Protocol):
    """All prices of a cluster's bill."""

    @property
    def date(self) -> str:
        """The date of the on-demand prices; "" if they have none."""

    def network(self, nat_gateways: int) -> float:
        """Return the price of what the cluster's network has besides its nodes."""


@dataclass(frozen=True, slots=True)
class Delivery(Generic[T_co]):
    """A message as a queue delivers it. One that is not deleted is delivered again, later."""

    id: str
    """The same at each delivery of the message."""
    receipt: str
    """Deletes it, or hands it back. Each delivery has another one."""
    content: T_co
    sent_at: float = 0.0
    """When it was sent, by the queue's clock; 0 if not known."""


class MessageQueue(Protocol[T_co]):
    """A queue that delivers each message at least once, in any order."""

    def receive(self, seconds: float) -> Sequence[Delivery[T_co]]:
        """Wait at most so long for messages, and return them."""

    def delete(self, receipt: str) -> None:
        """Delete a message.

        A receipt that no longer counts is no error: the message comes again, and is then a
        duplicate.
        """

    def hand_back(self, receipt: str) -> None:
        """Make a message visible again at once, for another controller.

        One that is deleted or visible already is no error.
        """


class EventSource(MessageQueue[CloudEvent], Protocol):
    """What the cloud says about the cluster's instances and groups. It may also say it of others.

    A controller works without it, only later: it also looks at instances and groups by itself.
    """


class CommandSource(MessageQueue[Command | None], Protocol):
    """The commands of users; None stands for a message that is not one."""


class NoticeSource(Protocol):
    """What a node learns, on the node itself, about its own end. Used by one thread."""

    def poll(self) -> Sequence[Notice]:
        """Return the notices about this node that have not been returned before.

        Raises `Unavailable` if it cannot tell.
        """


def no_receivers(_names: Mapping[str, int]) -> Sequence[Receiver]:
    """Of a cloud that stores no receivers."""
    return ()


@dataclass(frozen=True, slots=True)
class Cloud:
    """All that a controller needs of the cloud that its cluster is in."""

    provider: CapacityProvider
    events: EventSource
    commands: CommandSource
    prices: ClusterPrices
    objects: ClusterBucket
    receivers: FindReceivers = no_receivers
    """Returns where notifications go, by the names in the job's description."""
    calls: Callable[[], Mapping[tuple[str, str], int]] = dict
    """Returns how often this process has called the cloud, by service and outcome."""
