"""`spotelastic kube render`: from flags and spotelastic.toml to manifests, without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kubernetes.pod_jobs import check_schema, of_kind

from spotelastic.cli.main import run_command
from spotelastic.errors import UsageError

SHORT = ("--image", "example.com/train:1", "--storage", "s3://team-data/train")
LEAST = ("--as", "job", *SHORT)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rendered(capsys: pytest.CaptureFixture[str], *args: str) -> list[Any]:
    assert run_command(["kube", "render", *args]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def pod(made: list[Any]) -> Any:
    return of_kind("Job", made)["spec"]["template"]["spec"]


def test_flags_alone_make_a_job_that_keeps_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    made = rendered(capsys, *LEAST, "--max", "8", "src/train_gpt.py", "--epochs", "3")
    for manifest in made:
        check_schema(manifest)
    assert of_kind("Job", made)["metadata"]["name"] == "train-gpt"
    (container,) = pod(made)["containers"]
    assert container["args"][-3:] == ["src/train_gpt.py", "--epochs", "3"]
    assert "--nnodes=1:8" in container["args"]


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
    with pytest.raises(UsageError, match="--as job: --replace-slow is for an ElasticJob"):
        run_command(["kube", "render", *LEAST, "--max", "6", "--replace-slow"])
    made = rendered(capsys, "--as", "job", "--max", "6", "--image", "example.com/b:2")
    job = of_kind("Job", made)
    assert (job["metadata"]["namespace"], job["spec"]["completions"]) == ("ml", 6)
    assert pod(made)["nodeSelector"] == {"karpenter.sh/capacity-type": "spot"}
    (container,) = pod(made)["containers"]
    assert container["image"] == "example.com/b:2"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "memory": "100Gi"}
    assert container["args"][-3:] == ["train.py", "--lr", "1e-3"]
    with pytest.raises(UsageError, match=r"no key kubernetes\.memori: did you mean memory"):
        (folder / "spotelastic.toml").write_text('[kubernetes]\nmemori = "1Gi"\n')
        run_command(["kube", "render", *LEAST])


def test_a_secrets_value_is_neither_needed_nor_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "from-the-environment")
    (folder / ".env").write_text("TOKEN=from-the-file\nEPOCHS=3\n")
    secrets = ("--secret", "WANDB_API_KEY", "--secret", "TOKEN", "--secret", "ABSENT")
    assert run_command(["kube", "render", *LEAST, "--env-file", ".env", *secrets]) == 0
    text = capsys.readouterr().out
    assert "from-the" not in text
    assert "kubectl create secret generic train --from-literal=ABSENT=" in text
    (container,) = pod(list(yaml.safe_load_all(text)))["containers"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert values["EPOCHS"] == "3"
    assert values["TOKEN"] is None and values["ABSENT"] is None


def test_an_elastic_job_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    (made,) = rendered(capsys, *SHORT, "--max", "4", "--namespace", "ml", "a/train.py", "--lr", "1")
    assert made["metadata"] == {"name": "train", "namespace": "ml"}
    assert made["spec"] == {
        "image": "example.com/train:1", "storage": "s3://team-data/train", "min": 1, "max": 4,
        "script": "a/train.py", "args": ["--lr", "1"],
    }  # fmt: skip
    assert run_command(["kube", "render", *LEAST, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in listed["items"]] == ["Service", "NetworkPolicy", "Job"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--storage", "s3://b/r"), "name the container image"),
        (("--image", "i"), "no storage was given"),
        (("--as", "job", "--image", "i"), "no storage was given"),
        ((*SHORT, "--linger", "soon"), "--linger"),
        ((*LEAST, "--toleration", "a b"), "--toleration a b: expected KEY"),
        ((*LEAST, "--resource", "efa"), "--resource efa: expected NAME=VALUE"),
        ((*LEAST, "--min", "3", "--max", "2"), "--max 2"),
        ((*LEAST, "--memory", "64GB"), "--memory 64GB: expected a quantity"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_flag(args: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError) as error:
        run_command(["kube", "render", *args])
    assert told in str(error.value)
