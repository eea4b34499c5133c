"""Declares the options of `up` about checkpoints and failures."""

from collections.abc import Sequence
from dataclasses import dataclass

from spotelastic.client.config.option import option
from spotelastic.client.config.panels import SAFETY
from spotelastic.model.in_place import AUDIT_PATTERN, FIRST, REHEARSE_MODES
from spotelastic.model.interval import TIME
from spotelastic.model.job import ALLOW_UNCOMMITTED
from spotelastic.model.replication import RATE

INTERVAL = rf"auto|\d+|{TIME}"


@dataclass(frozen=True, kw_only=True)
class SafetyOptions:
    """How often a job is saved, and what it survives."""

    PANEL = SAFETY

    snapshot_every: str | int = option(
        "auto",
        "Interval of snapshots in shared memory: steps (20), time (30s), or auto (by cost).",
        metavar="STEPS|TIME",
        pattern=INTERVAL,
        stored=lambda job: job.settings.snapshot_every,
    )
    checkpoint_every: str | int = option(
        "auto",
        "Interval of checkpoints in the object store: steps (500), time (10m), or auto.",
        metavar="STEPS|TIME",
        pattern=INTERVAL,
        stored=lambda job: job.settings.checkpoint_every,
    )
    keep_last: int = option(
        3, "How many of the newest checkpoints to keep.", stored=lambda job: job.settings.keep_last
    )
    keep_every: int = option(
        0,
        "Also keep checkpoints whose step is a multiple of this; 0: none.",
        stored=lambda job: job.settings.keep_every,
    )
    output: Sequence[str] = option(
        (),
        "Folder of the script whose files are kept beside the checkpoints. Can be repeated.",
        metavar="DIR",
        stored=lambda job: job.settings.outputs,
    )
    replicate: str = option(
        "auto",
        "Keep shards that one node alone holds in another node's memory, too.",
        metavar="auto|off|RATE",
        pattern=rf"auto|off|{RATE}",
        stored=lambda job: job.settings.replicate,
    )
    rehearse: str = option(
        "auto",
        "Repeat an early step, and check that it gives the same result; strict: fail if it does "
        "not; first: `spotelastic rehearse` on the first node, before others are launched.",
        metavar="|".join((*REHEARSE_MODES, FIRST)),
        choices=(*REHEARSE_MODES, FIRST),
        stored=lambda job: job.settings.rehearse,
    )
    exact: bool = option(
        False,
        "The same bits on any nodes: set and compare what changes them. For scripts with virtual "
        "ranks.",
        off="no-exact",
        stored=lambda job: job.settings.exact,
    )
    guard: bool = option(
        False,
        "Skip steps whose loss or gradients are NaN, infinite, or far out of their history; go "
        "back after three in a row, without their data.",
        stored=lambda job: job.settings.guard,
    )
    audit: str = option(
        "",
        "In one step of so many, have other ranks compute a virtual rank again; replace the node "
        "whose result differs.",
        metavar="1/STEPS",
        pattern=AUDIT_PATTERN,
        stored=lambda job: f"1/{job.settings.audit}" if job.settings.audit else "",
    )
    allow_uncommitted: bool = option(
        False,
        "Succeed even if the last step could not be committed.",
        stored=lambda job: ALLOW_UNCOMMITTED in job.env,
    )
    max_restarts: int = option(
        3,
        "Restarts after failures of the script. Interruptions do not count.",
        stored=lambda job: job.settings.max_restarts,
    )
    stall_timeout: float = option(
        0.0,
        "Restart the workers if no step completes for this long; 0: never.",
        metavar="SECONDS",
        stored=lambda job: job.settings.stall_timeout,
    )
    exit_barrier_timeout: float = option(
        300.0,
        "How long a node that has finished waits for the other nodes.",
        metavar="SECONDS",
        stored=lambda job: job.settings.exit_barrier,
    )
    lease: float | None = option(
        None,
        "How long a node counts as alive without being heard from.",
        metavar="SECONDS",
        least=2,
        shown_default="8, or 3 with --local",
    )
    gang: bool = option(
        False,
        "Fail the job when a node is lost.",
        off="no-gang",
        stored=lambda job: job.settings.gang,
    )
