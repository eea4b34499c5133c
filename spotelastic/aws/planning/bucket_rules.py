"""Looks whether a bucket of the user's own (`--bucket`) keeps objects as a cluster needs them.

Nodes read until the job's end what was stored at its beginning: code, software, certificates. And
checkpoints that are retired should cost nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spotelastic.aws.base.clients import Aws, calling, optional

ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Classes of storage from which objects cannot be read at once."""


def warnings(aws: Aws, bucket: str, folder: str) -> Iterator[str]:
    """Yield what the bucket does with objects in a folder; nothing where AWS does not tell."""
    rules: list[dict[str, Any]] = []
    with optional(), calling(f"look at the lifecycle of {bucket}"):
        rules = aws.s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    its = [rule for rule in rules if _is_about(rule, f"{folder}/")]
    for rule in its:
        if does := _does(rule):
            yield (
                f"--bucket {bucket}: its lifecycle rule {rule.get('ID', '')} {does}: nodes that "
                f"start later could not, and the job would lose its checkpoints: exclude {folder}/"
            )
    versioned = False
    with optional(), calling(f"look at the versions of {bucket}"):
        versioned = aws.s3.get_bucket_versioning(Bucket=bucket).get("Status") == "Enabled"
    if versioned and not any("NoncurrentVersionExpiration" in rule for rule in its):
        yield (
            f"--bucket {bucket} keeps old versions: retired checkpoints stay and are paid for, "
            "until a lifecycle rule (NoncurrentVersionExpiration) deletes them"
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
    moves: Sequence[Mapping[str, Any]] = rule.get("Transitions", ())
    cold = next((each for each in moves if each["StorageClass"] in ARCHIVES), None)
    if "Days" in gone or "Date" in gone:
        return f"deletes objects {_when(gone)}"
    return f"moves objects to {cold['StorageClass']} {_when(cold)}" if cold else ""


def _when(its: Mapping[str, Any]) -> str:
    return f"after {its['Days']} days" if "Days" in its else f"on {its['Date']:%Y-%m-%d}"
