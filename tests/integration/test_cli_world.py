"""A new user on the local cloud: a project of one's own, `init`, packages, a secret, other code."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.tls import PeerTls
from spotelastic_checkpoints.peers.transfers import Peer
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from support.aws.policies import keeps_to_its_cluster, role_of
from support.clusters.local_cloud import environment, running_cloud, until
from support.processes.wheels import tiny
from support.unkind.fault_client import FaultClient

from spotelastic.aws.artifacts.boot_artifacts import CURRENT
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.certificates import WORKER_NAME
from spotelastic.client.logs import tail
from spotelastic.local import cloud
from spotelastic.model.protocol import PROTOCOL

BOOTS = 300.0
"""Seconds that a job may take to start, of which there are three: its nodes boot, build its
packages and import torch, on a machine that may have other things to do."""
SECRET = "correct-horse-battery"
SCRIPT = """
import os, subprocess, time
import torch
import torch.distributed as dist
import spotelastic as se
import tinymath

dist.init_process_group("gloo")
where = subprocess.check_output(["tiny"], text=True).strip()
print("found", tinymath.double(21), "/environments/" in where, os.environ["KEY"],
      os.environ["MODE"], open("set-up").read(), flush=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
with se.Checkpointer({"model": model}) as checkpoint:
    start = checkpoint.restore()
    print("VERSION from step", start, flush=True)
    for step in range(start + 1, 100_000):
        model(torch.ones(1, 2)).sum().backward()
        time.sleep(0.05)
        checkpoint.step(step)
"""


class User:
    """At a terminal, in the folder of the project."""

    def __init__(self, folder: Path, cloud: Path, aws: Aws, faults: FaultClient) -> None:
        self.folder = folder
        self.cloud = cloud
        self.aws = aws
        self.faults = faults

    def edit(self, changes: Mapping[str, str]) -> None:
        """What `init` shows as an example, in its file, becomes what is wanted."""
        file = self.folder / "spotelastic.toml"
        text = file.read_text()
        for example, wanted in changes.items():
            assert text.count(f"\n{example}\n") == 1, example
            text = text.replace(f"\n{example}\n", f"\n{wanted}\n")
        file.write_text(text)

    def write(self, version: str) -> None:
        (self.folder / "train.py").write_text(SCRIPT.replace("VERSION", version))

    def __call__(self, *args: str) -> str:
        told = subprocess.run(
            [sys.executable, "-m", "spotelastic", *args],
            cwd=self.folder,
            env=os.environ | {"KEY": SECRET},
            capture_output=True,
            text=True,
            timeout=BOOTS,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        return told.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "--json"))

    # What takes its time is looked for from here: a command for each look would keep a core busy,
    # and what is looked for would come the later.

    def cluster(self) -> ClusterRecord:
        (name,) = clusters.all_names(self.aws)
        found = clusters.find(name, self.aws)
        assert found is not None
        return found

    def training(self, nodes: int) -> None:
        objects = self.cluster().objects

        def trains() -> bool:
            status = objects.status()
            rows = status.nodes if status is not None else ()
            return sum(row.state == "training" for row in rows) == nodes

        until(trains, timeout=BOOTS)

    def starts(self, version: str) -> list[int]:
        """The steps that workers of this version began at."""
        cluster = self.cluster()

        def said() -> list[int]:
            lines = [line for line in self.log(cluster) if f"{version} from step" in line]
            return [int(line.rpartition(" ")[2]) for line in lines]

        return until(said, timeout=BOOTS)

    def log(self, cluster: ClusterRecord) -> list[str]:
        return [str(line) for line in tail(cluster)]


def only_nodes_of_the_cluster_get_at_snapshots(user: User) -> None:
    one, other = user.cloud.glob("instances/*/home/.se/agent/daemon.sock")
    secret = user.aws.ssm.get_parameter(Name=Names("train").token, WithDecryption=True)
    token = secret["Parameter"]["Value"]
    folder = one.parent.parent / "tls"
    tls = PeerTls(folder / "ca.pem", folder / "cert.pem", folder / "key.pem", WORKER_NAME)
    with contextlib.closing(DaemonClient(str(other))) as daemon:
        address = daemon.status().listen
    Peer(address, PeerCredentials(token, tls)).close()
    for stranger, said in (
        (PeerCredentials(token), "it speaks TLS only"),
        (PeerCredentials("guessed", tls), "is the token the same"),
    ):
        with pytest.raises(RestoreFailed, match=said):
            Peer(address, stranger)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    folder = tmp_path / "project"
    folder.mkdir()
    tiny(folder)
    (folder / "requirements.txt").write_text("./tinymath-1.0-py3-none-any.whl\n")
    (folder / ".spotelasticignore").write_text("huge.bin\n")
    (folder / "huge.bin").write_bytes(os.urandom(1 << 20))
    with (
        running_cloud(tmp_path / "home", boot=cloud.BOOT) as info,
        environment(**cloud.environment(info)),
    ):
        yield User(folder, Path(info.folder), Aws(info.region), FaultClient(info))


@pytest.mark.timeout(4 * BOOTS)
@pytest.mark.soak
def test_a_project_with_packages_and_a_secret_is_trained_changed_and_resumed(user: User) -> None:
    told = user("init", "--min", "1", "--max", "1", "--instance-types", "m5.large")
    assert "check it, write train.py, then run `spotelastic up`" in told
    user.edit(
        {
            "# local = true": "local = true",
            '# setup = "python -m nltk.downloader punkt"': 'setup = "printf done > set-up"',
            '# env = ["EPOCHS=3"]': 'env = ["MODE=fast"]',
            '# secret = ["WANDB_API_KEY"]': 'secret = ["KEY"]',
        }
    )
    user.write("one")
    told = user("up", "--plan")
    assert "train.py with requirements.txt: 1 spot m5.large" in told
    assert clusters.all_names(user.aws) == ()
    user("up", "--detach")
    assert user.starts("one") == [0]
    status = user.json("status")
    assert (status["name"], status["state"]) == ("train", "running")
    assert "found 42 True *** fast done" in user("logs")
    bucket = BucketObjects(user.aws, "spotelastic-123456789012-us-east-1", "train")
    names = bucket.names("")
    assert any(name.startswith("environments/") for name in names)
    assert sum(len(bucket.get(name) or b"") for name in names if name.startswith("code/")) < 1 << 20
    for name in ("job.json", "status.json", "events.jsonl"):
        assert SECRET.encode() not in (bucket.get(name) or b"")

    user.write("two")
    bucket.put(CURRENT, b"0123456789abcdef/spotelastic-0.0.9-py3-none-any.whl")
    told = user("up", "--detach", "--max", "2")
    assert f"train runs spotelastic 0.0.9 (protocol {PROTOCOL}), and this command is" in told
    assert "train is up already; changes: max 1 -> 2; code" in told
    user.training(2)
    assert min(user.starts("two")) > 0
    assert user.json("report")["interruptions"] == []  # it was asked for
    only_nodes_of_the_cluster_get_at_snapshots(user)
    its = "s3://spotelastic-123456789012-us-east-1/train/checkpoints"
    by_name, by_url = (user.json("ckpt", "ls", place) for place in ("train", its))
    steps = [{entry["step"] for entry in listed} for listed in (by_name, by_url)]
    assert set.intersection(*steps), "the job goes on meanwhile, and old ones go"
    assert "nothing would change" in user("up", "--plan", "--max", "2")
    planned = user.json("up", "--plan", "--max", "1")
    assert (planned["is_up"], planned["changes"]) == (True, ["max 2 -> 1"])
    assert planned["usd_per_hour_at_min"] == planned["usd_per_hour_at_max"] > 0.0
    told = user("up", "--plan", "--max", "2", "--env", "MODE=fast", "--env", "KEY=another one")
    assert "would change the cluster train: secret\n" in told

    done = {"logs:PutLogEvents", "s3:GetObject", "s3:PutObject", "ssm:GetParameter"}
    role = role_of(user.aws, "train", "WorkerRole")
    keeps_to_its_cluster(role, "train", user.faults.calls(), done)
    teardown.delete("train", aws=user.aws)
    told = user("up", "--detach", "--resume", "train", "--name", "next")
    assert re.search(
        r"continuing from step \d+ of the run train, saved .* ago by train.py.*; begin afresh with",
        told,
    )
    assert min(user.starts("two")) > 0
    assert "\nnext is gone\n" in user("down")
