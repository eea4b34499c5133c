"""Holds a job's storage for the nodes of one cluster.

Another cluster whose job has the same name is refused before it trains. In another namespace nobody
else would see it.
"""

import os
import signal
from collections.abc import Callable

from spotelastic_checkpoints.commit.tenancy import (
    PACE,
    InUse,
    Tenancy,
    TenancyPace,
    Tenant,
    tenant_here,
)
from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.open import open_storage

from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import JobSpec

ANSWER_WITHIN = 30.0
"""Seconds for which a storage that does not answer is waited for; it is asked on after that."""


ENDED = (0, 1)
"""Exit codes of an agent whose job has ended: no node of it uses the storage any more."""


class StorageTaken(EnvironmentFailure):
    """Another cluster trains in the storage, or it does not take this one."""


def holding(spec: JobSpec, run: Callable[[], int], pace: TenancyPace = PACE) -> int:
    """Return what `run` returns, and meanwhile hold the storage together with the cluster's nodes.

    Raises `StorageTaken` while another cluster trains in it. If another one takes it later,
    because this one was cut off for long, this process gets SIGTERM.
    """
    group = f"{spec.cluster} {spec.born_at!r}"
    # Not by the name of its etcd, which is the same in another namespace.
    mine = tenant_here(spec.run, f"{spec.cluster}: {spec.script}", group=group)
    tenancy = Tenancy(lambda: open_storage(spec.storage), mine, displaced=_leave, pace=pace)
    code = None
    try:
        tenancy.settle(ANSWER_WITHIN)
        tenancy.prepared()
        code = run()
    except (InUse, StorageRefused) as error:
        raise StorageTaken(
            f"the storage {spec.storage}: {error}: end that job, or give this one another storage"
        ) from None
    finally:
        tenancy.release(over=code in ENDED)
    return code


def _leave(_: Tenant) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
