"""Writes the text of `spotelastic.toml`, with comments, from what a script and its folder say
(pure)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spotelastic.client.init.folder_facts import FolderFacts
from spotelastic.client.init.script_facts import ScriptFacts
from spotelastic.model.counting import size

SHOWN = 6
"""Most arguments that are shown."""
PACKAGES = (
    "# Packages come from uv.lock, requirements.txt or environment.yml in this folder; or "
    '"none".\n# environment = "requirements.txt"'
)


@dataclass(frozen=True, slots=True)
class SettingsWanted:
    """What the user has said."""

    script: str
    minimum: int
    maximum: int
    types: Sequence[str] = ()


def settings_text(
    wanted: SettingsWanted, script: ScriptFacts, folder: FolderFacts, schema: str
) -> str:
    """Return the file that `init` writes. `schema` is the line that names its JSON schema."""
    listed = ", ".join(json.dumps(name) for name in wanted.types or ("g5.xlarge",))
    unsaid = "" if wanted.types else "# "
    return f"""\
{schema}
# Settings of `spotelastic up` in this folder. Each key is one of its flags; a flag on the command
# line wins. See `spotelastic up --help`.
script = {json.dumps(wanted.script)}
{_arguments(script)}
# Use a cloud emulated on this machine, in place of AWS:
# local = true

min = {wanted.minimum}
max = {wanted.maximum}
# If not set: the cheapest GPU types in the account's quota, or the cheapest that also have what
# is given by gpus = 8 and gpu-memory = "40GB".
{unsaid}instance-types = [{listed}]
# Limits: a job is stopped, with its last step saved, before it passes one of them.
# max-cost = 50
# deadline = "8h"

{_packages(folder)}
# setup = "python -m nltk.downloader punkt"
{_variables(script)}
{_secrets(script)}
{_buckets(script, folder)}

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


def _list(values: Sequence[str]) -> str:
    return ", ".join(json.dumps(value) for value in values)


def _arguments(script: ScriptFacts) -> str:
    given = [each for each in script.arguments if each.default is not None][:SHOWN]
    if not given:
        return '# args = ["--epochs", "3"]'
    words = [word for each in given for word in (each.flag, str(each.default))]
    others = len(script.arguments) - len(given)
    more = f" ({others} more)" if others else ""
    return f"# The script's own arguments, with its defaults{more}:\n# args = [{_list(words)}]"


def _packages(folder: FolderFacts) -> str:
    if not folder.packages:
        return PACKAGES
    return (
        f"# Packages come from {folder.packages} in this folder; or from another file, or "
        f'"none".\n# environment = {json.dumps(folder.packages)}'
    )


def _variables(script: ScriptFacts) -> str:
    if not script.variables:
        return '# env = ["EPOCHS=3"]'
    names = script.variables[:SHOWN]
    return (
        "# Variables that the script reads. NAME alone: with the value that it has here.\n"
        f"# env = [{_list(names)}]"
    )


def _secrets(script: ScriptFacts) -> str:
    if not script.secrets:
        return '# secret = ["WANDB_API_KEY"]'
    return (
        "# Variables that nobody should see: `up` takes their values from where it runs.\n"
        f"# secret = [{_list(script.secrets)}]"
    )


def _buckets(script: ScriptFacts, folder: FolderFacts) -> str:
    lines = []
    if folder.large:
        named = ", ".join(f"{name} ({size(nbytes)})" for name, nbytes in folder.large)
        lines.append(f"# Large files here: {named}. What is no code belongs into a bucket,")
        lines.append("# or into .spotelasticignore: the folder is shipped, up to 256 MiB.")
    if script.buckets:
        lines.append("# What the script names in S3; write = [...] for what it writes to:")
        lines.append(f"# read = [{_list(script.buckets)}]")
    else:
        lines.append('# read = ["s3://bucket/data"]')
    return "\n".join(lines)
