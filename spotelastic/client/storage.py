"""Opens the storage of a run, and waits for object stores that do not answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spotelastic_checkpoints.errors import CheckpointsError, StorageUnavailable
from spotelastic_checkpoints.storage.outage_retry import OutagePatience, OutageRetry
from spotelastic_checkpoints.storage.port import Storage
from spotelastic_checkpoints.storage.retrying import RetryingStorage

from spotelastic.errors import EnvironmentFailure, Unavailable

PATIENCE = OutagePatience(within=30.0, worth_a_word=1.0)
"""How long the storage may be unreachable."""


@contextmanager
def retried(
    opening: Callable[[], Storage],
    tell: Callable[[str], None],
    patience: OutagePatience = PATIENCE,
) -> Iterator[Storage]:
    """Open an object store and repeat each call for a while if it does not answer.

    `tell` is called once if that happens.
    """
    retry = OutageRetry(tell, "this command", patience)
    with explained():
        there = RetryingStorage(retry.ask(opening), retry)
        try:
            yield there
        finally:
            retry.end()
            there.close()


@contextmanager
def explained() -> Iterator[None]:
    """Translate the storage's errors into spotelastic's."""
    try:
        yield
    except StorageUnavailable as error:
        raise Unavailable(str(error)) from error
    except CheckpointsError as error:
        raise EnvironmentFailure(str(error)) from error
