"""The stages of a first run on a real account: `python -m support.aws.first_run [STAGE]...`, all of
them by default.

Each is a file in tests/aws. What they make and cost is told first, and asked for once. A stage
notes what it finds in build/aws-first-run.json, and takes down what it has made, whatever happens.
Auto Scaling empties all groups an hour and a half after they were made, should this machine have
gone by then. What they have found is written to one page, build/aws-first-run.md.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import boto3
import pytest
from support.aws.account import REGION, account
from support.aws.account_checks import all_checks
from support.aws.launch_guard import ENDS_AFTER, guard
from support.aws.run_evidence import (
    Evidence,
    about_bucket,
    about_console,
    about_group,
    about_stack,
    looked,
)
from support.aws.run_report import page

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.clusters import lifecycle, teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.clock import steady, wall
from spotelastic.model.progress import Status

ROOT = Path(__file__).parents[3]
FOUND = ROOT / "build/aws-first-run.json"
PAGE = FOUND.with_suffix(".md")
LACKING = frozenset({"accessanalyzer", "events"})
"""Services that the emulated account does not have, or only in part."""
SPEND = "SPOTELASTIC_AWS_SPEND"
NAME = "first-run"
BOOT = 900.0
"""Seconds that a machine may take until it does what it is for."""
T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    what: str
    usd: float
    minutes: int

    @property
    def costs(self) -> str:
        return f"${self.usd:.2f}, {self.minutes} min" if self.usd else "nothing"


STAGES = {
    0: Stage("policies, change sets, dry runs, images, quotas: nothing is made", 0.0, 3),
    1: Stage("three control nodes (t3.small), which lose each other; no worker", 0.1, 12),
    2: Stage("two c5.large spot workers that train, are lost and noticed", 0.15, 15),
    3: Stage("two g4dn.xlarge spot workers: NCCL, a notice, a lost GPU, --image", 1.0, 20),
    4: Stage("two g6.8xlarge (EFA), then one g6e.24xlarge (two cards, NAT)", 2.5, 15),
}


def main() -> None:
    """Tells the prices, asks, runs the stages' files until one fails, and writes the page."""
    numbers = [int(each) for each in sys.argv[1:]] or sorted(STAGES)
    for number in numbers:
        print(f"stage {number}: {STAGES[number].what}; costs about {STAGES[number].costs}")
    print(f"in all about ${sum(STAGES[number].usd for number in numbers):.2f}")
    if os.environ.get(SPEND) != "yes" and input("Go on? [y/N] ").lower() not in ("y", "yes"):
        sys.exit("nothing was made")
    code = next((code for number in numbers if (code := made(number))), 0)
    if FOUND.exists():
        PAGE.write_text(page(json.loads(FOUND.read_text()), emulated()))
        print(f"{PAGE} has it all on one page, with what differs from the emulation: send it in")
    sys.exit(code)


def made(number: int) -> int:
    """Runs the file of a stage; its exit code."""
    file = f"tests/aws/test_stage_{number}.py"
    checks = [sys.executable, "-m", "pytest", "-m", "aws", "-n", "0", "-s", "-rs", file]
    environment = os.environ | {SPEND: "yes"}
    return subprocess.run(checks, cwd=ROOT, env=environment, check=False).returncode


def emulated() -> dict[str, Any]:
    """The stages that can be made in the emulated account, which costs nothing either."""
    with tempfile.TemporaryDirectory() as folder, account(Path(folder)):
        file = Path(folder) / "emulated.json"
        with contextlib.redirect_stdout(None):
            all_checks(Aws(REGION), Evidence(file, "0"), LACKING)
        stages: dict[str, Any] = json.loads(file.read_text())["stages"]
    return stages


def marks(number: int) -> list[pytest.MarkDecorator]:
    """What makes a file a stage."""
    stage = STAGES[number]
    return [
        pytest.mark.aws,
        pytest.mark.timeout(int(ENDS_AFTER)),
        pytest.mark.skipif(
            os.environ.get(SPEND) != "yes",
            reason=f"stage {number} costs {stage.costs}: make test-aws-{number}",
        ),
    ]


@dataclass(frozen=True)
class Run:
    """A cluster of the first run, in a folder with a script."""

    aws: Aws
    folder: Path
    evidence: Evidence
    name: str = NAME

    def cli(self, *words: str, stdin: str | None = None) -> str:
        """A command as a user types it; its output."""
        done = subprocess.run(
            [sys.executable, "-m", "spotelastic", *words],
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def told(self, *words: str) -> Any:
        """What a command tells programs."""
        return json.loads(self.cli(*words, "--json"))

    def up(self, *words: str) -> None:
        """Brings the cluster up in the background, until it stands, and guards it."""
        command = [sys.executable, "-m", "spotelastic", "up", "--yes", "--detach"]
        command += ["--name", self.name, *words]  # what follows the script is the script's
        with subprocess.Popen(command, cwd=self.folder) as process:
            try:
                self.status(lambda s: sum(n.role == "control" for n in s.nodes) == 3, "control")
                self.evidence.fact(
                    "guarded groups", guard(self.aws, self.name, wall() + ENDS_AFTER)
                )
            except BaseException:
                process.kill()
                raise
            if "--max-price" in words:
                process.kill()  # no worker ever trains, which is what it waits for

    @property
    def cluster(self) -> ClusterRecord | None:
        return lifecycle.find(self.name, self.aws)

    def status(self, wanted: Callable[[Status], bool], what: str) -> Status:
        def look() -> Status | None:
            cluster = self.cluster
            found = None if cluster is None else cluster.objects.status()
            return found if found is not None and wanted(found) else None

        return eventually(look, what)

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[None]:
        """A soft check, with what explains a failure of a cluster."""
        its = Names(self.name)
        groups = (its.workers, *map(its.control, MEMBERS))
        with self.evidence.check(
            name,
            stack=about_stack(self.aws, its.stack),
            objects=about_bucket(self.aws, f"{self.name}/"),
            **{group: about_group(self.aws, group) for group in groups},
            **{f"console of {each}": about_console(self.aws, each) for each in self.machines()},
        ):
            yield

    def machines(self) -> list[str]:
        """The ids of the cluster's instances."""
        tagged = [{"Name": f"tag:{CLUSTER}", "Values": [self.name]}]
        found = self.aws.ec2.describe_instances(Filters=tagged)["Reservations"]
        return [each["InstanceId"] for part in found for each in part["Instances"]]

    def a_worker(self, world: int = 2) -> str:
        trains = self.status(lambda s: s.world_size == world, f"{world} ranks that train")
        return next(n.id for n in trains.nodes if n.state == "training")

    def trains_without(self, lost: str, world: int = 2) -> None:
        self.status(
            lambda s: (
                lost not in {n.id for n in s.nodes if n.state != "gone"} and s.world_size == world
            ),
            f"a worker in the place of {lost}",
        )

    def facts_of_nodes(self) -> None:
        """What the script's lines that begin with FACT tell of their machines."""
        for line in self.cli("logs", self.name).splitlines():
            told = line.partition("FACT ")[2]
            if told:
                fact = json.loads(told)
                self.evidence.fact(f"{fact['node']} {fact['command']}", fact["output"])


def eventually(look: Callable[[], T | None], what: str, timeout: float = BOOT) -> T:
    deadline = steady() + timeout
    while (found := look()) is None:
        assert steady() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(5.0)
    return found


@contextlib.contextmanager
def stage(number: int, folder: Path, script: str, name: str = NAME) -> Iterator[Run]:
    """A run whose cluster is taken down and searched for at the end; fails if a check did."""
    (folder / "train.py").write_text(script)
    key = str(number) if name == NAME else f"{number} {name}"
    run = Run(Aws(), folder, Evidence(FOUND, key), name)
    assert name not in lifecycle.all_names(run.aws), f"there is a cluster {name} already"
    try:
        yield run
    finally:
        for fact, words in {"cost": ("cost",), "events": ("events", "--all")}.items():
            run.evidence.fact(fact, looked(partial(run.told, *words, name)))
        with run.check("nothing is left"):
            teardown.delete(name, aws=run.aws, keep_data=False)
            assert tagged(run.aws.region, name) == []
    run.evidence.finish()


def tagged(region: str, name: str) -> list[str]:
    """What still has the cluster's tag, over all services."""
    tagging: Any = boto3.client("resourcegroupstaggingapi", region_name=region)
    pages = tagging.get_paginator("get_resources").paginate(
        TagFilters=[{"Key": CLUSTER, "Values": [name]}]
    )
    found = [item["ResourceARN"] for page in pages for item in page["ResourceTagMappingList"]]
    # Instances that are terminated are told for an hour.
    return [arn for arn in found if ":instance/" not in arn]


if __name__ == "__main__":
    main()
