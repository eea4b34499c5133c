"""Tries the receivers of notifications from this machine."""

from collections.abc import Mapping, Sequence

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


def try_receivers(given: Sequence[str], variables: Mapping[str, str], aws: Aws) -> dict[str, str]:
    """Send a trial to each of these URLs; return why each was not delivered, empty if it was.

    Raises `UsageError`.
    """
    found = urls.named(given, variables)
    if not found:
        raise UsageError(
            "no receiver is configured: give a URL, or the variable that holds it, as `notify` in "
            "spotelastic.toml, or as SPOTELASTIC_NOTIFY"
        )
    trial = Notification(f"trial {new_id()}", TITLE, TEXT)
    return {name: receiver(aws, name, url).send(trial).why for name, url in found.items()}
