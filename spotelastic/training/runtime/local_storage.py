"""Takes the storage for a script that runs without an agent, and reports what it resumes from.

A storage that another living run uses is refused. Rank 0 does this for all ranks.
"""

import os
import signal
import sys
from contextlib import suppress

from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.tenancy import InUse, Tenancy, Tenant, tenant_here
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.provenance import Recorded, StoredRun, ago, lines, made_by, shown
from spotelastic_checkpoints.storage.open import open_storage

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training.runtime.arena_folder import say

FRESH = "SPOTELASTIC_FRESH"
"""Environment variable. With 1, the run begins at step 0 and leaves stored checkpoints alone."""
ANSWER_WITHIN = 10.0
"""Seconds to wait for the storage's first answer."""


class OwnStorage:
    """The storage, taken until `close`."""

    def __init__(self, url: str, owner: str, *, take_over: bool) -> None:
        """Take the storage at `url`. Raises `UsageError` while another living run uses it."""
        self._url, self._owner = url, owner
        self._record = made_by(sys.argv[0] or "python", sys.argv[1:])
        self._recorded: Recorded | None = None
        mine = tenant_here(owner, self._record.command)
        self._tenancy = Tenancy(lambda: open_storage(url), mine, displaced=self._displaced)
        try:
            self._tenancy.settle(ANSWER_WITHIN)
            restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
            if os.environ.get(FRESH) == "1" and not restarted:
                self._afresh(take_over=take_over)
        except InUse as error:
            raise UsageError(
                f"another run ({_told(error.tenant)}) uses {shown(url)}: wait for its end, or give "
                "this one another storage (SPOTELASTIC_STORAGE)"
            ) from None
        except CheckpointsError as error:
            self.close(well=False)
            raise SpotelasticError(str(error)) from error

    def tell(self) -> None:
        """Print what the run resumes from.

        Call it after the claim, which may find a later commit.
        """
        with suppress(CheckpointsError):
            kept = StoredRun(open_storage(self._url), self._owner)
            for line in lines(kept, self._record, f"{FRESH}=1"):
                say(line)
            self._recorded = Recorded(kept, self._record)

    def close(self, *, well: bool) -> None:
        """Record how the run ended, and leave the storage."""
        if self._recorded is not None:
            self._recorded.ended(well=well)
        self._tenancy.release(over=True)

    def _afresh(self, *, take_over: bool) -> None:
        before = Commits(open_storage(self._url), self._owner).begin_afresh(take_over=take_over)
        if before is not None:
            say(
                f"beginning afresh: step {before.step} and earlier ones stay in "
                f"{shown(self._url)}, but are no longer used"
            )

    def _displaced(self, by: Tenant) -> None:
        say(
            f"another run ({_told(by)}) has taken {shown(self._url)}, because this one did not "
            "answer there in time: this run ends"
        )
        os.kill(os.getpid(), signal.SIGTERM)


def _told(tenant: Tenant) -> str:
    return f"{tenant.command}, begun {ago(tenant.begun_at)}, pid {tenant.pid} on {tenant.host}"
