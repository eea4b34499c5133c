"""When a cluster's certificates expire, and the warning that is due before they do."""

from dataclasses import dataclass
from datetime import UTC, datetime

from spotelastic.model.counting import DAY

RENEW_WITHIN = 30 * DAY
REPLACE_WITHIN = 365 * DAY
"""Seconds before the expiry of a certificate, or of the authority, at which the warning begins."""


@dataclass(frozen=True, slots=True)
class Validity:
    """Expiry times in seconds since the epoch; 0: not known."""

    certificates: float = 0.0
    """The earliest expiry of the nodes' certificates."""
    authority: float = 0.0
    """The expiry of the authority that signs them."""

    def warning(self, cluster: str, now: float) -> str:
        """Return what to do, and by when; empty while there is time."""
        if 0 < self.authority < now + REPLACE_WITHIN:
            return (
                f"the authority that signs {cluster}'s certificates {_ends(self.authority, now)}: "
                f"run `spotelastic down {cluster}` and `up` again, which continues from its "
                "checkpoints under a new one"
            )
        if 0 < self.certificates < now + RENEW_WITHIN:
            return (
                f"a certificate of {cluster}'s nodes {_ends(self.certificates, now)}: "
                "run `spotelastic up` again, which renews it"
            )
        return ""


def _ends(at: float, now: float) -> str:
    date = datetime.fromtimestamp(at, UTC).date()
    return f"expires on {date}" if at > now else f"expired on {date}"
