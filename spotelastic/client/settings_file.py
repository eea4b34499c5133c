"""Writes `spotelastic.toml`, the settings of `up` in a folder.

An existing file is replaced only if that is meant.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from spotelastic.client.config.config_file import FILE
from spotelastic.client.confirmation import Confirm, ConfirmationRequest, ensure
from spotelastic.errors import UsageError


def trains(script: Path) -> bool:
    """Whether a script seems to train."""
    return "backward(" in _text(script) or is_elastic(script)


def is_elastic(script: Path) -> bool:
    """Whether a script seems to have a Checkpointer."""
    return "Checkpointer(" in _text(script)


def _text(script: Path) -> str:
    try:
        return script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def find_script(folder: Path, usual: str) -> Path:
    """Return the script that `up` is to train if none is named.

    It is the usual one, else the only one that trains.

    Raises `UsageError` if several do.
    """
    if (folder / usual).is_file():
        return Path(usual)
    training = [Path(file.name) for file in sorted(folder.glob("*.py")) if trains(file)]
    if len(training) > 1:
        names = ", ".join(map(str, training))
        raise UsageError(f"several scripts here train: name one of {names}")
    return training[0] if training else Path(usual)


def settings_text(script: str, minimum: int, maximum: int, types: Sequence[str] = ()) -> str:
    """Return the file that `init` writes."""
    listed = ", ".join(json.dumps(name) for name in types or ("g5.xlarge",))
    unsaid = "" if types else "# "
    return f"""\
# Settings of `spotelastic up` in this folder. Each key is one of its flags; a flag on the command
# line wins. See `spotelastic up --help`.
script = {json.dumps(script)}
# args = ["--epochs", "3"]
# Use a cloud emulated on this machine, in place of AWS:
# local = true

min = {minimum}
max = {maximum}
# If not set: the cheapest GPU types in the account's quota, or the cheapest that also have what
# is given by gpus = 8 and gpu-memory = "40GB".
{unsaid}instance-types = [{listed}]
# Limits: a job is stopped, with its last step saved, before it passes one of them.
# max-cost = 50
# deadline = "8h"

# Packages come from uv.lock, requirements.txt or environment.yml in this folder; or "none".
# environment = "requirements.txt"
# setup = "python -m nltk.downloader punkt"
# Variables. NAME alone: with the value that it has here. Secrets are seen by nobody.
# env = ["EPOCHS=3"]
# secret = ["WANDB_API_KEY"]
# Data that the script reads in S3; write = [...] for what it writes to:
# read = ["s3://bucket/data"]

# Intervals of snapshots in memory and of checkpoints in S3, in steps or as a time. By default they
# are computed from what saving costs and how often nodes are lost.
# snapshot-every = 20
# checkpoint-every = "10m"
# keep-last = 3

# Put all worker nodes into one placement group, in one zone.
# placement = "cluster"

# Use an existing VPC, with one subnet per zone.
# vpc = "vpc-0a1b2c3d"
# subnets = ["subnet-0a", "subnet-0b", "subnet-0c"]

# How long the cluster stays after its job if it is left up.
# linger = "10m"
"""


def write_settings(folder: Path, text: str, confirm: Confirm) -> None:
    """Write the file. Raises `UsageError` if it cannot be written, or is there and shall stay."""
    try:
        if (folder / FILE).exists():
            replaces = ConfirmationRequest(
                about="file",
                what=f"{FILE} already exists",
                question="Replace it?",
                declined=f"{FILE} stays as it was: edit it",
                instead="edit it",
            )
            ensure(replaces, confirm)
        (folder / FILE).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {FILE} here: {error.strerror}; change to a folder that you own"
        ) from None
