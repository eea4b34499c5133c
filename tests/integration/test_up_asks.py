"""What another script or folder has made is changed by who means it; so is the account's bill."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from spotelastic_checkpoints.commit.latest import Latest
from spotelastic_checkpoints.types import Commit
from support.aws.account import CTRL_C, Laptop, account
from support.aws.cluster_requests import request

from spotelastic.aws.base.account import default_bucket
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cli.main import main
from spotelastic.cli.render import confirmation
from spotelastic.client import commands, watch
from spotelastic.client.confirmation import agreed, nobody_asked
from spotelastic.client.targets import aws_target, find
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.cloud.bucket import JOB, STATUS
from spotelastic.errors import UsageError
from spotelastic.model.progress import Status

pytestmark = pytest.mark.timeout(120)  # a watch that nothing ends lasts for ever

NAME, GONE = "quokka", "wombat"
Told = tuple[int, str, str]
"""Exit code, standard output and standard error."""
Up = Callable[..., Told]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Of an account in which one cluster is up, and of another the checkpoints are left."""
    with account(tmp_path_factory.mktemp("account")):
        laptop = Laptop()
        made = clusters.create(request(NAME, 2), lambda _: None, laptop.aws)
        made.objects.put(STATUS, msgspec.json.encode(Status(NAME, "running", 0.0)))
        gone = replace(made.spec, cluster=GONE, run=GONE)
        objects = replace(made, spec=gone).objects
        objects.put(JOB, msgspec.json.encode(gone))
        latest = Latest(GONE, 1, Commit(1, 20), "nonce")
        objects.put("checkpoints/LATEST", msgspec.json.encode(latest))
        yield laptop


@pytest.fixture
def up(
    laptop: Laptop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Up:
    for script in ("train.py", "other.py"):
        (tmp_path / script).write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(find, "in_region", lambda _: AwsTarget(laptop.aws))
    monkeypatch.setattr(aws_target, "ETCD", None)  # it would be fetched
    monkeypatch.setattr(watch, "EVERY", 0.01)

    def run(*args: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["spotelastic", "up", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Somebody sits at a terminal and types that."""
    keys, terminal = os.openpty()
    opened = os.fdopen(terminal, "r"), os.fdopen(os.dup(terminal), "w")

    def typed(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", opened[0])
        monkeypatch.setattr(confirmation, "somebody_is_there", sys.stdin.isatty)
        os.write(keys, text.encode())

    yield typed
    for stream in opened:
        stream.close()
    os.close(keys)


def had(laptop: Laptop, folder: str, script: str = "train.py", name: str = NAME) -> BucketObjects:
    """The cluster's objects, as if that script of that folder had been brought up."""
    objects = BucketObjects(laptop.aws, default_bucket(laptop.aws), name)
    job = objects.job()
    assert job is not None
    objects.put(JOB, msgspec.json.encode(replace(job, folder=folder, script=script)))
    return objects


OTHERS = [("/elsewhere", "train.py"), ("", "other.py"), ("here", "other.py")]


@pytest.mark.parametrize(("folder", "script"), OTHERS)
def test_a_job_of_another_script_or_folder_is_not_changed_where_nobody_can_be_asked(
    laptop: Laptop, up: Up, tmp_path: Path, folder: str, script: str
) -> None:
    objects = had(laptop, folder.replace("here", str(tmp_path)), script)
    before = objects.job()
    code, _, err = up("--name", NAME)
    assert code == 2 and err.count("\n") == 1
    assert err.startswith(f"spotelastic: quokka is up already, and trains {script}")
    assert ", not train.py" in err
    assert "give this one another --name" in err and "or add --yes if that is meant" in err
    assert objects.job() == before
    assert up("--name", NAME, "--plan")[0] == 0, "which changes nothing"


@pytest.mark.parametrize(("folder", "script"), [("here", "train.py"), ("", "train.py")])
def test_the_same_script_in_the_same_folder_changes_its_job_as_ever(
    laptop: Laptop, up: Up, tmp_path: Path, folder: str, script: str
) -> None:
    had(laptop, folder.replace("here", str(tmp_path)), script)
    with laptop.trial(CTRL_C, 1, "autoscaling.UpdateAutoScalingGroup"):
        code, out, _ = up("--name", NAME, "--max", "3", "train.py", "--steps", "7")
    assert code == 130 and "quokka is up already; changes: " in out


@pytest.mark.parametrize("answer", ["", "y\n"], ids=["--yes", "y"])
def test_who_means_it_changes_the_job(
    laptop: Laptop, up: Up, types: Callable[[str], None], tmp_path: Path, answer: str
) -> None:
    objects = had(laptop, "/elsewhere", "other.py")
    if answer:
        types(answer)
    with laptop.trial(CTRL_C, 1, "autoscaling.UpdateAutoScalingGroup"):
        code, out, err = up("--name", NAME, "--max", "3", *(() if answer else ("--yes",)))
    assert code == 130 and f"folder /elsewhere -> {tmp_path}" in out
    asked = "other.py of /elsewhere, not train.py of " in err
    assert asked == bool(answer) and ("Change its job to that? [y/N]" in err) == bool(answer)
    job = objects.job()
    assert job is not None and (job.script, job.folder) == ("train.py", str(tmp_path))


@pytest.mark.parametrize("answer", ["\n", "n\n", "\x04"], ids=["return", "n", "ctrl-d"])
def test_any_other_answer_changes_nothing(
    laptop: Laptop, up: Up, types: Callable[[str], None], answer: str
) -> None:
    before = had(laptop, "/elsewhere").job()
    types(answer)
    code, _, err = up("--name", NAME)
    assert code == 2 and "spotelastic: nothing was changed: give this one another" in err
    assert had(laptop, "/elsewhere").job() == before


def test_checkpoints_of_another_folder_are_not_gone_on_from_unasked(laptop: Laptop, up: Up) -> None:
    had(laptop, "/elsewhere", name=GONE)
    code, _, err = up("--name", GONE)
    assert code == 2 and err.count("\n") == 1
    assert "the checkpoints of wombat were made by train.py of /elsewhere, not train.py of " in err
    assert "`spotelastic down wombat --delete-data`" in err
    assert clusters.all_names(laptop.aws) == (NAME,)


@pytest.mark.parametrize("answer", ["n\n", "\x04"], ids=["n", "ctrl-d"])
def test_the_plan_is_shown_before_anything_is_made_that_costs_money(
    laptop: Laptop, up: Up, types: Callable[[str], None], answer: str
) -> None:
    types(answer)
    with laptop.trial():
        code, out, err = up("--name", "numbat", "--instance-types", "c5.large")
    assert code == 2
    assert "would create the cluster numbat" in out and "public IPv4 address" in out
    assert "while it leaves one that ran dry the job trains across two" in out
    assert "on demand, 0.05 USD a vCPU-hour if busy" in out, "credits of t3"
    assert "Create it for this price? [y/N]" in err and "spotelastic: nothing was created\n" in err
    assert clusters.all_names(laptop.aws) == (NAME,)
    assert not any(".Create" in call or ".Put" in call for call in laptop.calls)


def test_a_restart_from_another_folder_is_meant_by_who_says_so(
    laptop: Laptop, up: Up, tmp_path: Path
) -> None:
    objects = had(laptop, "/elsewhere")
    job = objects.job()
    assert job is not None
    cluster = clusters.ClusterRecord(laptop.aws, job, objects.bucket)
    refused = "quokka ran train.py of /elsewhere, not .* change to its folder, or add --same-code"
    with pytest.raises(UsageError, match=refused):
        commands.check_meant(cluster, tmp_path, nobody_asked)
    commands.check_meant(cluster, tmp_path, agreed)
