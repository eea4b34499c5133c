"""Rehearses the job's script on its first node, before the others are launched.

It is `spotelastic rehearse` in the node's own environment (`up --rehearse first`). The controller
launches no other node until this one has joined (`controller/decisions/capacity.py: held_back`),
and this one joins only if interruptions change nothing. A node that finds the run begun does not
rehearse again.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from spotelastic import protection
from spotelastic.aws.artifacts import boot_artifacts
from spotelastic.bootstrap.context import install_etcd
from spotelastic.bootstrap.job_environment import World
from spotelastic.bootstrap.phases import BootPhases
from spotelastic.bootstrap.reports import AGAIN, BootReports, repeated, reporting
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.in_place import FIRST
from spotelastic.model.job import JobSpec
from spotelastic.redaction import redactor
from spotelastic.store.etcd_server.process import find_binary
from spotelastic.store.tls import TlsFiles

logger = logging.getLogger(__name__)

WITHIN = 7200.0
"""Seconds that the whole rehearsal may take."""


def comes_back(
    objects: ClusterBucket,
    spec: JobSpec,
    node: str,
    code: Path,
    tls: TlsFiles,
    world: World,
    phases: BootPhases,
) -> bool:
    """Rehearse the script in the folder `code`, where the job wants that and no node has.

    Returns whether this node may join. A job whose script does not come back has failed then.
    """
    if spec.settings.rehearse != FIRST:
        return True
    with reporting(spec, node, tls) as reports, phases.phase("rehearsal"):
        if reports.store.get(reports.keys.reference) is not None:
            return True
        _have_etcd(objects)
        return rehearsed(spec, code, world, reports)


def rehearsed(spec: JobSpec, code: Path, world: World, reports: BootReports) -> bool:
    """Rehearse the script in the folder `code`, and tell the run what came of it."""
    why = _difference(spec, code, world, reports)
    if why:
        logger.error(why)
        reports.fail(why)
    return not why


def _difference(spec: JobSpec, code: Path, world: World, reports: BootReports) -> str:
    """Return why the job must not train; empty if interruptions change nothing."""
    command = [
        *(world.python or sys.executable, "-m", "spotelastic", "rehearse", "--json"),
        *(spec.script, "--", *spec.args),
    ]
    words = " ".join((spec.script, *spec.args))
    # Sockets lie below the temporary folder, and their paths are limited.
    with repeated(reports.tell, AGAIN) as tell, TemporaryDirectory("", "se-", "/tmp") as temporary:
        tell(f"rehearsing {words} before other nodes are launched")
        try:
            ended = subprocess.run(
                protection.without(command),
                cwd=code,
                env=os.environ | dict(world.env) | {"TMPDIR": temporary},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=WITHIN,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"--rehearse first: {words} was not rehearsed within {WITHIN:.0f} s"
    if ended.returncode == 0:
        reports.tell(f"rehearsed {words}: interruptions change nothing")
        return ""
    if lines := _differences(ended.stdout):
        found = "\n".join((f"--rehearse first: {words} does not come back as it was", *lines))
    else:
        said = ended.stderr.rpartition("\nspotelastic: ")[2].strip() or "it said nothing"
        found = f"--rehearse first: {words} could not be rehearsed: {said}"
    return redactor(world.secrets)(found)


def _differences(answer: str) -> list[str]:
    """Return what differs, of the answer of `rehearse`; nothing if it has given none."""
    try:
        rows = json.loads(answer)["rows"]
    except (ValueError, KeyError):
        return []
    return [
        f"{row['act']}: {'; '.join((row['state'], *row['what'], row['cause'], row['advice']))}"
        for row in rows
        if row["state"] in ("different", "failed")
    ]


def _have_etcd(objects: ClusterBucket) -> None:
    """Put an etcd on this process's PATH, where this machine has none."""
    try:
        find_binary()
    except EnvironmentFailure:
        install_etcd(objects, boot_artifacts.ETCD)
