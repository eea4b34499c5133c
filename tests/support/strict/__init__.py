"""The local cloud as strict as AWS: it judges each call by the policies of who makes it, checks
launches as EC2 does, and has quotas and other limits.

Users of the product's own cloud have no need of that. All clouds of `support.clusters` and the
account of `support.aws.account` have it: what the product asks of them, AWS permits and accepts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any

from support.strict.authority import Authority
from support.strict.launch_checks import DiskKey

if TYPE_CHECKING:
    from support.strict.reservations import Reserved
    from support.unkind.slow_parts import SlowInstances

    from spotelastic.local.moto_patches.patch import Patches


@dataclass(frozen=True)
class Strictness:
    """What an account permits and accepts."""

    authority: Authority = field(default_factory=Authority)
    quotas: dict[str, int] = field(default_factory=dict)
    """Quotas that were set, by code: of vCPUs by family, of networks, of addresses."""
    disk_key: DiskKey = field(default_factory=DiskKey)
    reservations: "dict[str, Reserved]" = field(default_factory=dict)
    """Reservations of capacity that were set, by id."""

    def install(
        self,
        patches: "Patches",
        lock: RLock,
        machines: "SlowInstances",
        is_known: Callable[[Any], bool],
    ) -> None:
        """Apply the patches, above the product's. `lock` is the cloud's; `is_known` whether EC2
        knows an instance profile by now.
        """
        from support.strict import (  # moto, at last
            attachments,
            launches,
            limits,
            permissions,
            reservations,
        )

        attachments.install(patches)
        limits.install(patches, self.quotas, machines)
        launches.install(patches, self.disk_key, machines, is_known)
        reservations.install(patches, self.reservations)
        permissions.install(patches, self.authority, lock)
