"""`spotelastic kube render`: from flags and spotelastic.toml to manifests, without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotelastic.cli.main import run_command
from spotelastic.errors import UsageError

SHORT = ("--image", "example.com/train:1", "--storage", "s3://team-data/train")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rendered(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert run_command(["kube", "render", *args]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_the_file_and_its_table_say_what_no_flag_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "spotelastic.toml").write_text(
        'min = 2\nmax = 4\ngpus = 8\nimage = "example.com/a:1"\nmax-price = 3.5\n'
        'script = "train.py"\nargs = ["--lr", "1e-3"]\n'
        "[kubernetes]\n"
        'namespace = "ml"\nstorage = "s3://team-data/a"\nmemory = "100Gi"\n'
        'node-selector = {"karpenter.sh/capacity-type" = "spot"}\n'
    )
    made = rendered(capsys, "--max", "6", "--image", "example.com/b:2")
    assert made["metadata"]["namespace"] == "ml"
    assert made["spec"] == {
        "image": "example.com/b:2", "storage": "s3://team-data/a", "min": 2, "max": 6, "gpus": 8,
        "memory": "100Gi", "nodeSelector": {"karpenter.sh/capacity-type": "spot"},
        "script": "train.py", "args": ["--lr", "1e-3"],
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"no key kubernetes\.memori: did you mean memory"):
        (folder / "spotelastic.toml").write_text('[kubernetes]\nmemori = "1Gi"\n')
        run_command(["kube", "render", *SHORT])


def test_a_secrets_value_is_neither_needed_nor_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "from-the-environment")
    (folder / ".env").write_text("TOKEN=from-the-file\nEPOCHS=3\n")
    secrets = ("--secret", "WANDB_API_KEY", "--secret", "TOKEN", "--secret", "ABSENT")
    assert run_command(["kube", "render", *SHORT, "--env-file", ".env", *secrets]) == 0
    text = capsys.readouterr().out
    assert "from-the" not in text
    assert "kubectl create secret generic train --from-literal=ABSENT=" in text
    spec = yaml.safe_load(text)["spec"]
    assert spec["env"] == {"EPOCHS": "3"}
    assert (spec["secret"], spec["secretsFrom"]) == (["WANDB_API_KEY", "TOKEN", "ABSENT"], "train")


def test_an_elastic_job_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    made = rendered(capsys, *SHORT, "--max", "4", "--namespace", "ml", "a/train.py", "--lr", "1")
    assert made["metadata"] == {"name": "train", "namespace": "ml"}
    assert made["spec"] == {
        "image": "example.com/train:1", "storage": "s3://team-data/train", "min": 1, "max": 4,
        "script": "a/train.py", "args": ["--lr", "1"],
    }  # fmt: skip
    assert run_command(["kube", "render", *SHORT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "ElasticJob"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--storage", "s3://b/r"), "name the container image"),
        (("--image", "i"), "no storage was given"),
        ((*SHORT, "--linger", "soon"), "--linger"),
        ((*SHORT, "--toleration", "a b"), "--toleration a b: expected KEY"),
        ((*SHORT, "--resource", "efa"), "--resource efa: expected NAME=VALUE"),
        ((*SHORT, "--min", "3", "--max", "2"), "--max 2"),
        ((*SHORT, "--memory", "64GB"), "--memory 64GB: expected a quantity"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_flag(args: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError) as error:
        run_command(["kube", "render", *args])
    assert told in str(error.value)
