"""Chooses the network interfaces of a worker from the network cards of its instance types (pure).

The layout is the one that AWS recommends: the primary interface is an ordinary one, and each card
that offers EFA has an `efa-only` interface, which takes no address. Two cases differ:

- Where EFA is on the primary card alone, one `efa` interface serves both. AWS gives a public
  address only to an instance with a single interface, and a NAT gateway would cost more.
- A primary card with room for one interface has an `efa` one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal

EFA_ONLY: Final = "efa-only"


@dataclass(frozen=True, slots=True)
class NetworkCard:
    """A network card of an instance type."""

    index: int
    efa: bool
    """Whether it can have an interface that is only for EFA."""
    interfaces: int
    """Most interfaces that it can have."""


@dataclass(frozen=True, slots=True)
class NetworkCards:
    """The network cards of an instance type."""

    cards: tuple[NetworkCard, ...] = (NetworkCard(0, efa=False, interfaces=1),)
    efa_interfaces: int = 0
    """Most interfaces for EFA on all cards together."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of a worker."""

    card: int
    """Index of the network card."""
    device: int
    """Index among the interfaces of the card."""
    kind: Literal["interface", "efa", "efa-only"]


ORDINARY = (Interface(0, 0, "interface"),)
"""The only interface of a worker without EFA."""


def parse_network(info: Mapping[str, Any]) -> NetworkCards:
    """Return the network cards that EC2 describes as the `NetworkInfo` of a type."""
    cards = tuple(
        NetworkCard(
            card.get("NetworkCardIndex", 0),
            EFA_ONLY in card.get("InterfaceTypes", ()),
            card.get("MaximumNetworkInterfaces", 1),
        )
        for card in info.get("NetworkCards", ())
    )
    if not cards:
        return NetworkCards()
    most = info.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    return NetworkCards(cards, most if info.get("EfaSupported") else 0)


def choose_interfaces(networks: Sequence[NetworkCards]) -> tuple[Interface, ...]:
    """Return the interfaces that every one of the types can have: they share one launch template.

    The first interface is the primary one.
    """
    shared = reduce(_shared, networks)
    efa = [card for card in shared.cards if card.efa][: shared.efa_interfaces]
    if not efa:
        return ORDINARY
    primary = next(card for card in shared.cards if card.index == 0)
    others = [card for card in efa if card.index]
    if primary in efa and (not others or primary.interfaces < 2):
        return (Interface(0, 0, "efa"), *(Interface(card.index, 0, EFA_ONLY) for card in others))
    return (*ORDINARY, *(Interface(card.index, int(card.index == 0), EFA_ONLY) for card in efa))


def _shared(one: NetworkCards, other: NetworkCards) -> NetworkCards:
    """Return what two types have in common."""
    theirs = {card.index: card for card in other.cards}
    cards = tuple(
        NetworkCard(
            card.index,
            card.efa and theirs[card.index].efa,
            min(card.interfaces, theirs[card.index].interfaces),
        )
        for card in one.cards
        if card.index in theirs
    )
    return NetworkCards(cards, min(one.efa_interfaces, other.efa_interfaces))
