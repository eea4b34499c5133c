"""Tries the receivers of notifications from this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.provider.receivers import receiver
from spotelastic.errors import UsageError
from spotelastic.model.ids import new_id
from spotelastic.notifications import urls
from spotelastic.notifications.notification import Notification

TITLE = "spotelastic: this is a test"
TEXT = (
    "Notifications about your jobs will arrive here. Nothing has happened.\n\n"
    "See: spotelastic up --help"
)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of trying one receiver."""

    receiver: str
    delivered: bool
    why: str
    """Why it was not delivered."""


def try_receivers(
    given: Sequence[str], variables: Mapping[str, str], aws: Aws
) -> tuple[TrialResult, ...]:
    """Send a trial to each of these URLs, one after the other. Raises `UsageError`."""
    found = urls.named(given, variables)
    if not found:
        raise UsageError(
            "no receiver is configured: give a URL, or the variable that holds it, here or as "
            "`notify` in spotelastic.toml"
        )
    trial = Notification(f"trial {new_id()}", TITLE, TEXT)
    results = []
    for name, url in found.items():
        why = receiver(aws, name, url).send(trial).why
        results.append(TrialResult(name, not why, why))
    return tuple(results)
