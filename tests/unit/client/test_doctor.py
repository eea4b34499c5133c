"""What `doctor` finds on a machine and in an account, and what it says to do."""

import json
import threading
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.aws.fake_services import ACCOUNT, fake_aws, refusal
from typer.testing import CliRunner

from spotelastic.aws.compute.instance_types import InstanceType
from spotelastic.aws.compute.quotas import Allowance
from spotelastic.cli.app import app
from spotelastic.client.doctor import account_checks, machine
from spotelastic.client.doctor.examine import Look, Needs, examine, looks
from spotelastic.client.doctor.finding import FindingState, Verdict
from spotelastic.client.doctor.machine import DriverFacts, TorchFacts
from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError

GIB = 2**30
CUDA = TorchFacts("2.9.0", "12.8", 1, "2.27.5")
G5 = InstanceType("g5.xlarge", 4, 1, "A10G", "x86_64")


def allowance(vcpus: int, used: int = 0) -> Allowance:
    return Allowance("G and VT", "L-3819A6DF", True, "us-east-1", vcpus, used)


@pytest.mark.parametrize(
    ("verdict", "state", "found", "advice"),
    [
        (machine.python((3, 12), "linux"), "ok", "Python 3.12", ""),
        (machine.python((3, 12), "darwin"), "note", "macOS", "Linux container"),
        (machine.judge_torch(None, needed=False, gpus=0), "note", "not installed", "[train]"),
        (machine.judge_torch(None, needed=True, gpus=0), "missing", "not installed", "[train]"),
        (machine.judge_torch(CUDA, needed=True, gpus=1), "ok", "CUDA 12.8, NCCL 2.27.5; 1 GPU", ""),
        (
            machine.judge_torch(TorchFacts("2.9.0+cpu"), needed=True, gpus=2),
            "warning",
            "CPU build, beside 2 GPUs",
            "pytorch.org",
        ),
        (
            machine.judge_torch(TorchFacts("2.9.0", "13.0"), needed=False, gpus=2),
            "missing",
            "sees none of 2 GPUs",
            "too old for CUDA 13.0",
        ),
        (machine.judge_driver(None), "ok", "none here", ""),
        (
            machine.judge_driver(DriverFacts(("H100, 81559 MiB",) * 2, "570.1")),
            "ok",
            "2: H100, 81559 MiB (driver 570.1)",
            "",
        ),
        (
            machine.judge_driver(DriverFacts(error="nvidia-smi: no devices")),
            "missing",
            "no devices",
            "--gpus all",
        ),
        (machine.judge_shm(None, 0), "missing", "none", "tmpfs"),
        (machine.judge_shm(64 * 2**20, 64 * 2**20), "warning", "67.1 MB", "--shm-size"),
        (machine.judge_shm(16 * GIB, GIB), "ok", "1.07 GB of 17.2 GB free", ""),
        (machine.judge_files(-1), "ok", "any number", ""),
        (machine.judge_files(128), "missing", "128", "ulimit -n"),
        (machine.judge_files(512), "warning", "512", "ulimit -n"),
        (
            machine.judge_disk({"/": 90 * GIB, "/tmp": GIB}),
            "warning",
            "1.07 GB free in /tmp",
            "/tmp",
        ),
        (machine.judge_disk({"/": 90 * GIB}), "ok", "free in /", ""),
        (
            machine.judge_local(["moto"], "", "", needed=True, system="linux"),
            "missing",
            "moto",
            "all",
        ),
        (
            machine.judge_local(["moto"], "", "", needed=False, system="linux"),
            "note",
            "moto",
            "all",
        ),
        (
            machine.judge_local([], "", "no etcd", needed=False, system="linux"),
            "missing",
            "etcd",
            "",
        ),
        (machine.judge_local([], "3.6.1", "", needed=True, system="linux"), "ok", "etcd 3.6.1", ""),
        (machine.judge_local([], "", "", needed=True, system="darwin"), "missing", "Linux", "AWS"),
        (account_checks.judge_clock(1000.0, 1000.4, 1000.6), "ok", "as AWS's", ""),
        (account_checks.judge_clock(1000.0, 1095.0, 1095.2), "warning", "94 s off", "NTP"),
        (account_checks.judge_clock(1000.0, 700.0, 700.2), "missing", "300 s off", "NTP"),
        (account_checks.judge_quota(None, G5, needed=True), "note", "g5.xlarge", ""),
        (account_checks.judge_quota(allowance(16, 4), G5, needed=True), "ok", "3 x g5.xlarge", ""),
        (
            account_checks.judge_quota(allowance(0), G5, needed=False),
            "warning",
            "0 of 0",
            "L-3819A6DF",
        ),
        (
            account_checks.judge_quota(allowance(8, 8), G5, needed=True),
            "missing",
            "0 of 8",
            "request-service-quota-increase --region us-east-1 --service-code ec2 --quota-code "
            "L-3819A6DF --desired-value 12",
        ),
        (
            account_checks.judge_quota(allowance(8), G5, needed=True, wanted=3),
            "missing",
            "2 x g5.xlarge",
            "--desired-value 12",
        ),
    ],
)
def test_each_thing_is_judged_and_what_is_wrong_has_its_advice(
    verdict: Verdict, state: FindingState, found: str, advice: str
) -> None:
    assert (verdict.state, bool(verdict.advice)) == (state, bool(advice))
    assert found in verdict.found and advice in verdict.advice


# -- gathering -------------------------------------------------------------------------------------


def program(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that does this."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_what_the_driver_says_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "echo 'NVIDIA L4, 23034 MiB, 570.86'; echo 'NVIDIA L4, 23034 MiB, 570.86'",
            monkeypatch)  # fmt: skip
    assert machine.driver_facts() == DriverFacts(("NVIDIA L4, 23034 MiB",) * 2, "570.86")
    program(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9", monkeypatch)
    facts = machine.driver_facts()
    assert facts is not None and facts.error == "nvidia-smi: NVIDIA-SMI has failed"
    assert machine.driver_facts("no-such-program") is None


def test_a_driver_that_hangs_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "exec sleep 1000", monkeypatch)
    facts = machine.driver_facts(within=0.05)
    assert facts is not None and "timed out" in facts.error


def test_torch_that_does_not_load_in_time_is_told() -> None:
    with pytest.raises(EnvironmentFailure, match="has not loaded within"):
        machine.torch_facts(within=0.001)


def sts(date: str = formatdate(usegmt=True)) -> Any:
    caller = {
        "Account": ACCOUNT,
        "Arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/admin/me",
        "ResponseMetadata": {"HTTPHeaders": {"date": date}},
    }
    return SimpleNamespace(get_caller_identity=lambda: caller)


def test_an_account_is_asked_who_and_when() -> None:
    aws = fake_aws(sts=sts(formatdate(5000.0, usegmt=True)))
    assert (
        account_checks.identity(aws).found
        == f"account {ACCOUNT}, assumed-role/admin/me, in us-east-1"
    )
    assert account_checks.clock_skew(aws, lambda: 5000.7).state == "ok"
    assert account_checks.clock_skew(aws, lambda: 9000.0).state == "missing"


def test_what_an_account_refuses_is_told_in_one_line() -> None:
    def denied(**_: object) -> None:
        raise refusal("AccessDenied", message="no describe")

    aws = fake_aws(ec2=SimpleNamespace(describe_instance_types=denied))
    found = examine([Look("AWS", "spot quota", lambda: account_checks.quota(aws, ()))])
    (finding,) = found.findings
    assert (finding.state, found.exit_code) == ("missing", 2)
    assert "cannot look up instance types: not permitted (no describe): see docs/" in finding.found


# -- all of it -------------------------------------------------------------------------------------


def raising(error: Exception) -> Callable[[], Verdict]:
    def run() -> Verdict:
        raise error

    return run


def test_a_look_that_hangs_or_breaks_holds_up_nothing() -> None:
    never = threading.Event()

    def hangs() -> Verdict:
        never.wait()
        return Verdict("ok", "")

    wanted = [
        Look("AWS", "hangs", hangs),
        Look("this machine", "disk", lambda: Verdict("ok", "room")),
        Look("this machine", "files", raising(RuntimeError("odd"))),
    ]
    found = examine(wanted, within=0.2)
    never.set()
    assert [(each.check, each.state) for each in found.findings] == [
        ("hangs", "no answer"),
        ("disk", "ok"),
        ("files", "no answer"),
    ]
    assert found.findings[2].found == "RuntimeError: odd"
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [(Unavailable("late"), "no answer", 1), (UsageError("no bucket"), "missing", 2)],
)
def test_errors_are_findings(error: Exception, state: str, code: int) -> None:
    found = examine([Look("AWS", "bucket", raising(error))])
    assert [each.state for each in found.findings] == [state]
    assert found.exit_code == code


def test_one_cause_is_told_once_and_what_has_nothing_to_tell_is_left_out() -> None:
    same = raising(UsageError("there is no profile x"))
    wanted = [Look("AWS", str(n), same) for n in range(3)] + [Look("AWS", "skipped", lambda: None)]
    assert [each.check for each in examine(wanted).findings] == ["0"]


def test_a_local_cloud_needs_no_account() -> None:
    assert {look.part for look in looks(Needs(local=True))} == {"this machine", "local cloud"}


def test_the_command_looks_without_a_network_and_without_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(app, ["doctor", "--aws", "--json"])
    told = json.loads(done.stdout)
    assert done.exit_code == told["exit_code"] == 2
    states = {each["check"]: each["state"] for each in told["findings"]}
    assert states["credentials"] == "missing" and states["system"] == "ok"
    assert "clock" not in states, "without credentials there is nobody to ask"
