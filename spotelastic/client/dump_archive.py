"""Writes what a cluster has published and its nodes have written into one archive, for bug reports.

What cannot be had is named, and the rest is kept: a bug report is often about just that.

Must never happen: a dump tells a secret. What is known to be one is replaced in all texts, and the
values of variables are left out.
"""

import io
import os
import platform
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from spotelastic_checkpoints.provenance import HIDDEN, without_secrets

from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.security import secrets
from spotelastic.client import logs
from spotelastic.client.logs import Wanted
from spotelastic.client.published import status_of
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import wall
from spotelastic.cloud.bucket import CURVE, EVENTS, MEASURED, REPORT, STATUS, USAGE
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.model.job import JobSpec
from spotelastic.model.requests.dump import file_name
from spotelastic.redaction import redactor, telling, without_known_formats
from spotelastic.version import __version__

LAST = 3600.0
"""Seconds before the last status of which the output is taken."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump that was written."""

    file: str
    """Path of the archive."""
    missing: tuple[str, ...]
    """What could not be had, and why."""


def write(cluster: ShownCluster, file: Path | None = None) -> Dump:
    """Write what there is of a cluster to `file`, by default one in this folder."""
    spec, status = cluster.spec, status_of(cluster)
    found = _secrets(cluster)
    known = (*found, *typed_secrets(spec.args), *telling(spec.env.values()))
    hide, missing, texts = redactor(known), list[str](), dict[str, str]()

    def add(name: str, read: Callable[[], str]) -> None:
        try:
            texts[name] = read()
        except SpotelasticError as error:
            missing.append(f"{name}: {error}")

    for name in (STATUS, REPORT, EVENTS, CURVE, MEASURED, USAGE):
        add(name, partial(_published, cluster, name))
    add("output.log", partial(_output, cluster, status.at - LAST))
    if isinstance(cluster, ClusterRecord):
        for node in status.nodes:
            read = partial(autoscaling.console, cluster.aws, node.id)
            add(f"console-{node.id}.log", read)
    told = job_without_secrets(spec, known=len(found) == len(spec.secrets))
    texts["job.json"] = msgspec.json.format(msgspec.json.encode(told)).decode()
    versions = f"spotelastic {__version__}, Python {platform.python_version()}"
    texts["index.txt"] = "\n".join([f"{versions}, {platform.platform()}", *missing, ""])
    to = file or Path(file_name(cluster.name, None, wall()))
    _archive(to, {name: without_known_formats(hide(text)) for name, text in texts.items()})
    return Dump(str(to.absolute()), tuple(map(hide, missing)))


def typed_secrets(args: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of arguments whose names suggest a secret. A script may print them."""
    pairs = zip(args, without_secrets(args), strict=True)
    return telling(
        arg.removeprefix(kept.removesuffix(HIDDEN)) for arg, kept in pairs if arg != kept
    )


def job_without_secrets(job: JobSpec, *, known: bool) -> dict[str, object]:
    """Return the job as plain values, with the names of its variables alone.

    Without `known`, secrets might stand anywhere in what the user has typed, which is left out.
    """
    plain: dict[str, object] = msgspec.to_builtins(job)
    plain["env"], plain["secrets"] = sorted(job.env), sorted(job.secrets)
    plain["args"] = without_secrets(job.args)
    if not known:
        plain["args"] = plain["setup"] = "left out: it may hold a secret whose value is not known"
    return plain


def _secrets(cluster: ShownCluster) -> tuple[str, ...]:
    """Return the values of the job's secrets that can still be read."""
    if not isinstance(cluster, ClusterRecord):
        return ()
    try:
        return secrets.known(cluster.aws, cluster.name, tuple(cluster.spec.secrets))
    except SpotelasticError:
        return ()


def _published(cluster: ShownCluster, name: str) -> str:
    data = cluster.objects.get(name)
    if data is None:
        raise UsageError("it was never written")
    return data.decode(errors="replace")


def _output(cluster: ShownCluster, since: float) -> str:
    return "".join(f"{line}\n" for line in logs.tail(cluster, Wanted(since=since)))


def _archive(file: Path, texts: dict[str, str]) -> None:
    """Write an archive that others cannot read. Raises `UsageError` if it cannot be written."""
    folder = file.name.removesuffix(".tar.gz")
    try:
        file.unlink(missing_ok=True)  # others might read what is there
        with (
            os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to,
            tarfile.open(fileobj=to, mode="w:gz") as tar,
        ):
            for name, text in texts.items():
                data = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime = len(data), int(wall())
                tar.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise UsageError(f"--output {file}: {error.strerror}") from error
