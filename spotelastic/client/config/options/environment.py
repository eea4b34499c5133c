"""Declares the options of `up` about the script's environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotelastic.client.config.option import UP, option
from spotelastic.client.config.panels import ENVIRONMENT
from spotelastic.model.job import ALLOW_UNCOMMITTED


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """What the script finds on its nodes: packages, variables, folders."""

    PANEL = ENVIRONMENT

    environment: str | None = option(
        None,
        "The packages that the script needs: uv.lock, requirements.txt or environment.yml.",
        metavar="FILE|none",
        shown_default="the first of these that is here",
        stored=lambda job: job.environment,
        shows_values=False,
    )
    setup: str | None = option(
        None,
        "Shell command that each node runs before the script.",
        metavar="CMD",
        stored=lambda job: job.setup,
    )
    image: str | None = option(
        None,
        "Container image, with Python and torch, that workers run in.",
        metavar="IMAGE",
        stored=lambda job: job.container,
    )
    env: Sequence[str] | Mapping[str, str] = option(
        (),
        "Environment variable for the script. Can be repeated.",
        metavar="NAME[=VALUE]",
        short="e",
        stored=lambda job: {**job.env, ALLOW_UNCOMMITTED: ""},
        shows_values=False,
    )
    env_file: str | Path | None = option(
        None, "File of variables, as NAME=VALUE lines.", effect=UP, metavar="FILE"
    )
    secret: Sequence[str] = option(
        (),
        "Variable whose value is taken from here and kept out of logs and status.",
        metavar="NAME",
        stored=lambda job: set(job.secrets),
        shows_values=False,
    )
    build_secret: Sequence[str] = option(
        (),
        "Variable for the build of packages alone, e.g. of a private index; NETRC: your ~/.netrc.",
        metavar="NAME",
        stored=lambda job: set(job.build_secrets),
        shows_values=False,
    )
    read: Sequence[str] = option(
        (),
        "Another folder that the script may read. Can be repeated.",
        metavar="s3://...",
        stored=lambda job: " ".join(job.read),
    )
    write: Sequence[str] = option(
        (),
        "Another folder that the script may read and write. Can be repeated.",
        metavar="s3://...",
        stored=lambda job: " ".join(job.write),
    )
    mount: Sequence[str] = option(
        (),
        "File system of EFS, FSx or NFS for a folder of each node. Can be repeated.",
        metavar="SOURCE:/FOLDER",
        stored=lambda job: " ".join(job.mounts),
    )
    bucket: str | None = option(
        None,
        "Your own bucket for code and checkpoints.",
        shown_default="one per account and region",
    )
