"""`JobConfig`: one description of a job, for Python, flags, file, variables and editors."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import typer

import spotelastic as se
from spotelastic.cli.app import app
from spotelastic.cli.options import up as options
from spotelastic.client.config.differences import differences
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.option import Effect, config_fields
from spotelastic.client.config.validated_job import check
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.errors import UsageError

FIELDS = {field.name: field for field in config_fields(JobConfig)}


# -- in Python -------------------------------------------------------------------------------------


def test_a_job_is_described_by_keywords_that_are_the_flags() -> None:
    config = se.JobConfig("train.py", min=2, max=8, env={"EPOCHS": "3"}, snapshot_every=20)
    assert (config.script, config.most, config.snapshot_every) == (Path("train.py"), 8, "20")
    assert config.env == ("EPOCHS=3",)
    assert config == se.JobConfig(
        script=Path("train.py"), min=2, max=8, env=["EPOCHS=3"], snapshot_every="20"
    )
    assert hash(config) != hash(replace(config, max=9))
    assert se.JobConfig(min=numpy.int64(2), max=8.0) == se.JobConfig(min=2, max=8)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        config.min = 3  # type: ignore[misc]


def test_as_many_nodes_as_at_least_are_the_most_unless_more_are_given() -> None:
    assert JobConfig(min=4).most == 4
    assert replace(JobConfig(min=4), min=6).most == 6
    assert JobConfig(min=4, max=6).most == 6


def test_one_text_is_one_value_of_a_list_or_several_with_commas() -> None:
    config = JobConfig(
        instance_types="g5.xlarge, g6.xlarge,g5.xlarge", read="s3://a,b", args="--note 'two words'"
    )
    assert config.instance_types == ("g5.xlarge", "g6.xlarge")
    assert (config.read, config.args) == (("s3://a,b",), ("--note", "two words"))


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"min": "two"}, "--min two: needs a whole number"),
    ({"min": True}, "--min True: needs a whole number"),
    ({"min": None}, "--min None: needs a whole number"),
    ({"max_cost": float("nan")}, "--max-cost nan: needs a number"),
    ({"gang": "perhaps"}, "--gang perhaps: needs true or false"),
    ({"gpus": 0}, "--gpus 0: needs to be at least 1"),
    ({"zones": "all"}, "--zones all: expected pack or spread"),
    ({"rehearse": "on"}, "--rehearse on: expected auto or off or strict"),
    ({"name": True}, "--name True: needs a text"),
    ({"name": ["a"]}, "--name a: needs a text"),
    ({"env": {"A": ["1"]}}, "needs a text for each name"),
    ({"secret": {"A": "1"}}, "needs a list of texts"),
    ({"subnets": " , "}, "--subnets  , : name at least one"),
    ({"args": "'"}, "args ': no closing quotation"),
    ({"script": 1.5j}, "script 1.5j: needs a text"),
    ({"min": 2.5}, "--min 2.5: needs a whole number"),
    ({"args": b"ab"}, "needs a list of texts"),
)


def test_a_wrong_value_is_named_by_its_flag() -> None:
    for given, message in WRONG:
        with pytest.raises(UsageError) as refused:
            JobConfig(**given)
        assert message in str(refused.value)


def test_it_brings_no_command_line_and_no_cloud_along() -> None:
    code = (
        "import sys, spotelastic; spotelastic.JobConfig('train.py', min=2)\n"
        "print([name for name in ('typer', 'rich', 'boto3', 'botocore', 'torch', 'grpc')"
        " if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_python_reads_what_up_would_read_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spotelastic.toml").write_text('script = "a.py"\nmin = 2\nmax = 6\ngang = true\n')
    monkeypatch.setenv("SPOTELASTIC_MAX", "7")
    assert JobConfig.load(tmp_path, min=3) == JobConfig("a.py", min=3, max=7, gang=True)
    (tmp_path / "spotelastic.toml").write_text("mim = 2")
    with pytest.raises(UsageError, match="did you mean min"):
        JobConfig.load(tmp_path)


# -- on the command line ---------------------------------------------------------------------------


def test_up_has_an_option_for_each_field_and_no_other() -> None:
    named = {each.name: each for each in commands()["up"].params}
    fields = {field.name: field for field in config_fields(PodConfig)}
    assert set(named) == set(fields)
    for name, field in fields.items():
        assert named[name].opts[0] == (field.name if field.argument else field.flag)
    assert options.signature().parameters.keys() == {"call", *FIELDS}


def test_scale_changes_what_the_fields_say_that_it_does() -> None:
    shared = {"name", "where", "region", "kube", "context", "namespace", "json", "help"}
    flags = {each.opts[0] for each in commands()["scale"].params if each.name not in shared}
    assert flags == {field.flag for field in FIELDS.values() if field.effect is Effect.SCALE}


def commands() -> dict[str, Any]:
    found: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return found


# -- on a cluster that is up -----------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "script": "other.py",
    "args": ["--epochs", "4"],
    "min": 3,
    "max": 9,
    "instance_types": "g6.xlarge",
    "zones": "spread",
    "nproc_per_node": 2,
    "snapshot_every": 20,
    "checkpoint_every": "10m",
    "keep_last": 5,
    "keep_every": 100,
    "output": ["out"],
    "replicate": "1.5GB",
    "rehearse": "off",
    "exact": True,
    "guard": True,
    "audit": "1/1000",
    "allow_uncommitted": True,
    "max_restarts": 7,
    "stall_timeout": 60,
    "exit_barrier_timeout": 30,
    "gang": True,
    "environment": "requirements.txt",
    "setup": "make",
    "image": "team/torch:2.9",
    "env": {"A": "1"},
    "env_file": Path(".env"),
    "secret": ["KEY"],
    "build_secret": ["KEY"],
    "read": "s3://data/a",
    "write": "s3://data/b",
    "tag": {"Team": "vision"},
    "reservations": "open",
    "permissions_boundary": "arn:aws:iam::123456789012:policy/boundary",
    "data_key": "arn:aws:kms:us-east-1:123456789012:key/1234",
    "worker_profile": "workers",
    "control_profile": "controls",
    "stack_role": "arn:aws:iam::123456789012:role/stacks",
    "control_image": "ami-1",
    "proxy": "http://proxy.example.com:3128",
    "no_proxy": ".example.com",
    "index_url": "https://pypi.example.com/simple",
    "mount": ["fs-0123abcd:/data"],
    "on_demand": "fallback",
    "spot_patience": 30,
    "max_price": 1.5,
    "max_cost": 20,
    "deadline": "8h",
    "linger": "forever",
    "keep_failed": True,
    "replace_slow": True,
    "metrics_port": 9464,
    "notify": ["json://127.0.0.1", "ntfy://127.0.0.1/topic"],
    "notify_digest": "06:30",
    "regions": "us",
    "region_patience": "10m",
    "prefer_capacity": True,
    "moves_per_day": 3,
}
"""Another value for each field that an `up` changes."""
NAMED_AS = {"env_file": "env"}
"""Fields whose change is another field's in the end."""
STAYING = frozenset({"data_key", "control_profile", "control_image", "proxy", "no_proxy"})
"""Fields that a job has alone which does not move by itself, and is in a network of the user's."""


def test_an_up_names_each_field_that_it_changes_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.py", "other.py", "requirements.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".env").write_text("A=1\n")
    monkeypatch.setenv("KEY", "hunter2222")
    usual = JobConfig(
        "train.py",
        min=2,
        max=8,
        instance_types="g5.xlarge",
        environment="none",
        regions="us-east-1,us-west-2",
        region_patience="20m",
        notify=["json://127.0.0.1"],
    )
    before = check(usual, tmp_path).spec
    assert list(differences(before, check(usual, tmp_path).spec)) == []
    network: dict[str, Any] = {"vpc": "vpc-1", "subnets": "s-1", "proxy": "http://proxy:1"}
    staying = replace(usual, regions=(), region_patience=None, **network)
    stays = check(staying, tmp_path).spec
    for name, value in OTHER.items():
        given: dict[str, Any] = {name: tmp_path / value if isinstance(value, Path) else value}
        base, its = (staying, stays) if name in STAYING else (usual, before)
        (told,) = differences(its, check(replace(base, **given), tmp_path).spec)
        assert told.split()[0] == NAMED_AS.get(name, name).replace("_", "-")
    changing = {f.name for f in FIELDS.values() if f.effect in (Effect.UP, Effect.SCALE)}
    assert set(OTHER) == changing, "the others cannot be changed"
    assert {f.name for f in FIELDS.values() if f.stored} == changing - set(NAMED_AS)


def test_nodes_of_a_base_on_demand_have_the_first_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    policies = [
        check(JobConfig("train.py", max=4, on_demand=bought), tmp_path).spec.settings.rank_policy
        for bought in ("base=2", "base=0", "fallback", "never")
    ]
    assert policies == ["on-demand-first", "stable", "stable", "stable"]


# -- texts ---------------------------------------------------------------------------------------

TEXTS = ("auto", "0", "20", "10m", "1.5h", "90s", "10 m", "m", "-1", "", "forever", "ever")
WORDS_OF = {
    "snapshot_every": TEXTS,
    "checkpoint_every": TEXTS,
    "replicate": ("auto", "off", "100MB", "1.5GB/s", "10KB", "100", "100 MB", "on", ""),
    "deadline": TEXTS,
    "region_patience": TEXTS,
    "linger": TEXTS,
    "on_demand": (
        "never",
        "fallback",
        "base=0",
        "base=1",
        "base=",
        "base=x",
        "base=-1",
        "always",
        "",
    ),
    "zones": ("pack", "spread", "", "all"),
    "rehearse": ("auto", "off", "strict", "on", ""),
    "placement": ("cluster", "near"),
}


def test_texts_of_a_form_are_taken_and_others_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert {name for name, field in FIELDS.items() if field.choices} <= WORDS_OF.keys()
    for name, texts in WORDS_OF.items():
        verdicts = [up_accepts(tmp_path, {name: text}) for text in texts]
        assert {*verdicts} == {True, False}, (name, dict(zip(texts, verdicts, strict=True)))


WITH: dict[str, dict[str, Any]] = {"region_patience": {"regions": "us"}}
"""What some fields need beside them."""


def up_accepts(folder: Path, values: dict[str, Any]) -> bool:
    try:
        check(JobConfig(**WITH.get(min(values), {}) | values), folder)
    except UsageError:
        return False
    return True
