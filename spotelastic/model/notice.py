"""Warnings that a node will go, and the drain that follows from one."""

from dataclasses import dataclass
from typing import Literal

NoticeKind = Literal["notice", "rebalance", "scheduled", "leave"]
Source = Literal["imds", "sqs", "signal", "command"]


@dataclass(frozen=True, slots=True)
class Notice:
    """What AWS (or a person) said about one node.

    `at` is when it was issued as far as known, `seen_at` when we first saw it, and `deadline` when
    the node may be gone; all in seconds since the epoch.
    """

    kind: NoticeKind
    node: str
    source: Source
    at: float
    seen_at: float
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """The stored form of a notice that makes the node leave: written once, by who sees it first."""

    node: str
    notice: Notice
