"""Holds the deadlines and sizes that the adapters of object stores keep to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines and sizes of requests to an object store; tests set shorter ones.

    The time to connect is not part of a deadline.
    """

    answer: float = 20.0
    """Seconds for a small request."""
    part: float = 120.0
    """Seconds for a part of an object, or a listing."""
    silence: float = 20.0
    """Seconds without a byte after which a connection counts as broken."""
    page: int = 1000
    """Keys per answer of a listing, and per request to delete; S3 takes no more."""


DEFAULT_LIMITS = Limits()
