"""Until when a cluster's certificates are good, and when somebody has to see to them."""

from dataclasses import dataclass
from datetime import UTC, datetime

DAY = 86_400.0
RENEW_WITHIN = 30 * DAY
REPLACE_WITHIN = 365 * DAY
"""Seconds before an end from which on it is told: time for an `up`, or for another cluster."""


@dataclass(frozen=True, slots=True)
class Validity:
    """Times, in seconds; 0: not known."""

    certificates: float = 0.0
    """The first end among the nodes'."""
    authority: float = 0.0

    def warning(self, cluster: str, now: float) -> str:
        """What is to be done, and by when; empty while there is time."""
        if 0 < self.authority < now + REPLACE_WITHIN:
            return (
                f"the authority that signs {cluster}'s certificates {_ends(self.authority, now)}: "
                f"run `spotelastic down {cluster}` and `up` again, which goes on from its "
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
    return f"ends on {date}" if at > now else f"has ended on {date}"
