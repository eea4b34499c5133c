"""Looks whether a bucket of the user's own (`--bucket`) keeps objects as a cluster needs them.

Nodes read until the job's end what was stored at its beginning: code, software, certificates.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from spotelastic.aws.base.clients import Aws, calling, optional

ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Classes of storage from which objects cannot be read at once."""


def warnings(aws: Aws, bucket: str, folder: str) -> Iterator[str]:
    """Yield what the bucket does with objects in a folder; nothing where AWS does not tell."""
    rules: list[dict[str, Any]] = []
    with optional(), calling(f"look at the lifecycle of {bucket}"):
        rules = aws.s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    for rule in rules:
        if _is_about(rule, f"{folder}/") and (does := _does(rule)):
            yield (
                f"--bucket {bucket}: its lifecycle rule {rule.get('ID', '')} {does}: nodes that "
                f"start later could not, and the job would lose its checkpoints: exclude {folder}/"
            )


def _is_about(rule: Mapping[str, Any], folder: str) -> bool:
    """Return whether a rule is about objects in the folder, which have no tags (pure)."""
    where = rule.get("Filter") or {}
    where = where.get("And") or where
    prefix = str(where.get("Prefix") or rule.get("Prefix") or "")
    if rule["Status"] != "Enabled" or "Tag" in where or "Tags" in where:
        return False
    return folder.startswith(prefix) or prefix.startswith(folder)


def _does(rule: Mapping[str, Any]) -> str:
    """Return what a rule does to objects that are still used; "" for nothing (pure)."""
    gone: Mapping[str, Any] = rule.get("Expiration", {})
    if "Days" in gone or "Date" in gone:
        return f"deletes objects after {gone['Days']} days" if "Days" in gone else "deletes objects"
    cold = {each["StorageClass"] for each in rule.get("Transitions", ())} & ARCHIVES
    return f"moves objects to {', '.join(cold)}" if cold else ""
