"""What `init` reads in a script and its folder, and the file that it makes of that."""

import re
import tomllib
from pathlib import Path

import pytest

from spotelastic.client.config.config_file import FILE, defaults
from spotelastic.client.confirmation import agreed
from spotelastic.client.init.folder_facts import (
    LARGE,
    FolderFacts,
    find_script,
    folder_facts,
    read_script,
)
from spotelastic.client.init.script_facts import ScriptArgument, ScriptFacts, script_facts
from spotelastic.client.init.settings_text import SettingsWanted, settings_text
from spotelastic.client.init.write import write_settings
from spotelastic.errors import NotConfirmed, UsageError

SCRIPT = """\
import argparse
import os
from os import getenv
import wandb

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-e", "--epochs", type=int, default=3)
parser.add_argument("--lr", default=1e-3)
parser.add_argument("--name", default="it's \\"mine\\"")
parser.add_argument("--amp", action="store_true", default=False)
parser.add_argument("--out", required=True)
rank = int(os.environ["LOCAL_RANK"])
token = os.environ.get("HF_TOKEN")
cache = getenv("DATA_CACHE")
train = "s3://corpus/books/train.bin"
loss.backward()
"""
NOTHING = FolderFacts()
WANTED = SettingsWanted("train.py", 2, 8)


def file_of(script: ScriptFacts, folder: FolderFacts = NOTHING) -> str:
    return settings_text(WANTED, script, folder, "#:schema x")


def uncommented(text: str) -> dict[str, object]:
    """The settings that the file shows as examples, too."""
    return tomllib.loads(re.sub(r"(?m)^# ([a-z-]+ = )", r"\1", text))


def test_a_script_says_its_arguments_variables_secrets_and_data() -> None:
    assert script_facts(SCRIPT) == ScriptFacts(
        arguments=(
            ScriptArgument("--epochs", "3"),
            ScriptArgument("--lr", "0.001"),
            ScriptArgument("--name", 'it\'s "mine"'),
            ScriptArgument("--amp", None),
            ScriptArgument("--out", None),
        ),
        secrets=("HF_TOKEN", "WANDB_API_KEY"),
        variables=("DATA_CACHE",),
        buckets=("s3://corpus/books/train.bin",),
        is_elastic=False,
        trains=True,
    )
    assert script_facts("se.Checkpointer({})").is_elastic
    assert script_facts("def f(:") == script_facts("\0") == ScriptFacts()


def test_what_was_read_stands_in_the_file_as_a_comment() -> None:
    folder = FolderFacts("uv.lock", (("data/train.bin", 900_000_000),))
    text = file_of(script_facts(SCRIPT), folder)
    assert tomllib.loads(text) == {"script": "train.py", "min": 2, "max": 8}
    shown = uncommented(text)
    assert shown["args"] == ["--epochs", "3", "--lr", "0.001", "--name", 'it\'s "mine"']
    assert (shown["env"], shown["secret"]) == (["DATA_CACHE"], ["HF_TOKEN", "WANDB_API_KEY"])
    assert (shown["read"], shown["environment"]) == (["s3://corpus/books/train.bin"], "uv.lock")
    assert "data/train.bin (900 MB)" in text
    assert all(len(line) <= 100 for line in text.splitlines()[1:])


def test_a_script_that_says_nothing_leaves_examples() -> None:
    shown = uncommented(file_of(ScriptFacts()))
    assert shown["args"] == ["--epochs", "3"]
    assert shown["secret"] == ["WANDB_API_KEY"]


def test_a_folder_says_its_packages_and_what_is_large(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    for name in ("data/a.bin", ".git/big", "venv/big", "small.bin"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        with file.open("wb") as opened:
            opened.truncate(LARGE + 1 if name != "small.bin" else LARGE - 1)
    (tmp_path / "round").symlink_to(tmp_path)
    assert folder_facts(tmp_path) == FolderFacts("requirements.txt", (("data/a.bin", LARGE + 1),))
    (tmp_path / "uv.lock").touch()
    assert folder_facts(tmp_path).packages == "uv.lock", "as `up` would take it"


def test_the_script_is_the_usual_one_or_the_only_one_that_trains(tmp_path: Path) -> None:
    assert find_script(tmp_path, "train.py") == Path("train.py")
    (tmp_path / "model.py").write_text("class Net: ...")
    (tmp_path / "fit.py").write_text("loss.backward()")
    assert find_script(tmp_path, "train.py") == Path("fit.py")
    (tmp_path / "other.py").write_text("loss.backward()")
    with pytest.raises(UsageError, match=r"name one of fit.py, other.py"):
        find_script(tmp_path, "train.py")
    (tmp_path / "train.py").touch()
    assert find_script(tmp_path, "train.py") == Path("train.py")
    assert read_script(tmp_path, Path("gone.py")) == ScriptFacts()


def test_a_file_that_is_there_is_replaced_only_if_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("mine")
    with pytest.raises(NotConfirmed, match="stays as it was"):
        write_settings(tmp_path, WANTED, ScriptFacts(), lambda _: False)
    assert (tmp_path / FILE).read_text() == "mine"
    write_settings(tmp_path, WANTED, ScriptFacts(), agreed)
    assert defaults(tmp_path, {}) == {"script": Path("train.py"), "min": 2, "max": 8}
