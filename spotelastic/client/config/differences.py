"""Tells what an `up` changes of a job that a cluster has already."""

from collections.abc import Collection, Iterator

from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.option import config_fields
from spotelastic.model.job import JobSpec


def differences(
    known: JobSpec,
    wanted: JobSpec,
    secrets: Collection[str] = (),
    config: type[JobConfig] = JobConfig,
) -> Iterator[str]:
    """Yield what differs between a cluster's job and the wanted one, by the names of the flags.

    `secrets` are those whose values differ, which neither job holds; receivers of notifications
    among them.
    """
    receivers = [name for name in secrets if name in wanted.notify]
    changed = {"notify": receivers, "secret": [name for name in secrets if name not in receivers]}
    for field in config_fields(config):
        if field.stored is None:
            continue
        was, now = field.stored(known), field.stored(wanted)
        if was == now and not changed.get(field.name):
            continue
        yield f"{field.key} {_shown(was)} -> {_shown(now)}" if field.shows_values else field.key
    if known.folder not in ("", wanted.folder):  # older versions did not record it
        yield f"folder {known.folder} -> {wanted.folder}"
    if known.code != wanted.code:
        yield "code"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value in ("", None) else str(value)
