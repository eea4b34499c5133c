"""Defines `JobConfig`, the one description of a job that `up` is given.

Each field is declared once, with `option`: its flag, key and variable have its name. Those that
concern more than the job itself are in `options/`, by subject. See CONTRIBUTING for how a field is
added.
"""

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

from spotelastic.client.config.option import COMMAND, option, read_fields
from spotelastic.client.config.options.environment import EnvironmentOptions
from spotelastic.client.config.options.money import MoneyOptions
from spotelastic.client.config.options.moving import MovingOptions
from spotelastic.client.config.options.network import NetworkOptions
from spotelastic.client.config.options.node_options import NodeOptions
from spotelastic.client.config.options.safety import SafetyOptions
from spotelastic.client.config.options.watching import WatchingOptions
from spotelastic.client.config.panels import AFTER, JOB
from spotelastic.model.counting import duration

SCRIPT = "train.py"
"""The script that is used if none is given."""


@dataclass(frozen=True)
class JobConfig(  # whose signature begins with the last of these
    NetworkOptions,
    EnvironmentOptions,
    WatchingOptions,
    SafetyOptions,
    MoneyOptions,
    MovingOptions,
    NodeOptions,
):
    """A job: the script, the nodes that train it, their price limits, and what is kept.

    The fields are the flags of `spotelastic up`, with underscores. Only `script` may be given
    without its name:

        JobConfig("train.py", min=2, max=8, env={"EPOCHS": "3"})

    Raises `UsageError` for a value that its flag would not take either. What contradicts the
    folder, the machine or the account is found later, by `up`.
    """

    PANEL = JOB

    script: str | Path | None = option(
        None,
        "A Python script in the current folder. The folder is shipped to the nodes.",
        argument=True,
        shown_default=SCRIPT,
        stored=lambda job: job.script,
    )
    _: KW_ONLY
    args: Sequence[str] = option(
        (),
        "Arguments of the script: everything after it.",
        argument=True,
        stored=lambda job: " ".join(job.args),
    )
    name: str | None = option(
        None,
        "Name of the cluster. The same name continues from its checkpoints.",
        shown_default="from the script",
    )
    resume: str | None = option(None, "Continue an earlier run in a new cluster.", metavar="RUN")
    fresh: bool = option(
        False, "Begin at step 0; earlier checkpoints are left alone.", effect=COMMAND, in_file=False
    )
    plan: bool = option(
        False,
        "Only show what would be created or changed, and its price.",
        effect=COMMAND,
        in_file=False,
    )
    yes: bool = option(
        False,
        "Do not ask: neither to confirm the price on AWS, nor to replace another script's job.",
        effect=COMMAND,
        short="y",
    )
    force: bool = option(
        False,
        "Launch even if AWS, or the plan, says beforehand that it cannot work.",
        effect=COMMAND,
        in_file=False,
    )
    json: bool = option(False, "Print the plan as JSON.", effect=COMMAND, in_file=False)
    drill: bool = option(
        False, "Interrupt nodes, to show recovery. Needs --local.", effect=COMMAND, off="no-drill"
    )
    detach: bool = option(
        False, "Return as soon as the job trains.", effect=COMMAND, off="no-detach", short="d"
    )
    fetch: str = option(
        "auto",
        "Where kept files go when the job has ended; auto: NAME-files, up to 100 MB of them.",
        panel=AFTER,
        effect=COMMAND,
        metavar="DIR|auto|off",
    )
    keep: bool = option(
        False,
        "Leave the cluster up after its job, for --linger.",
        panel=AFTER,
        effect=COMMAND,
        off="no-keep",
    )
    linger: str | int = option(
        "10m",
        "How long a cluster that is left up stays after its job: 10m, 0, forever.",
        panel=AFTER,
        metavar="TIME|forever",
        stored=lambda job: "forever" if job.linger is None else duration(job.linger),
    )
    keep_failed: bool = option(
        False,
        "Keep the node whose worker failed the job, for the time of --linger.",
        panel=AFTER,
        off="no-keep-failed",
        stored=lambda job: job.capacity.keep_failed,
    )
    report: str | Path | None = option(
        None,
        "Write the report here, as JSON; beside it, as a page (.html).",
        effect=COMMAND,
        metavar="FILE",
    )
    curve: str | Path | None = option(
        None, "Draw the loss curve here, as SVG.", effect=COMMAND, metavar="FILE"
    )

    def __post_init__(self) -> None:
        read_fields(self)

    @classmethod
    def load(cls, folder: str | Path = ".", **given: Any) -> Self:
        """Return the job that `spotelastic up` would start in `folder`.

        Its fields come from `spotelastic.toml` there, from the `SPOTELASTIC_*` variables, and from
        `given`, which wins over both.
        """
        from spotelastic.client.config import config_file

        return cls(**config_file.defaults(Path(folder), os.environ, cls) | given)

    @property
    def most(self) -> int:
        """Most nodes to train with: `max`, or `min` if it is not given."""
        return self.min if self.max is None else self.max
