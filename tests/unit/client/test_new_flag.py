"""A flag of `up` is added as CONTRIBUTING shows it: its example works on a copy of the sources."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes.patience import PATIENT

ROOT = Path(__file__).parents[3]

LOOK = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import configuration_reference

import spotelastic
from spotelastic.cli.commands import up_on_terminal
from spotelastic.cli.app import app
from spotelastic.client.config.differences import differences
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check

configs = []
up_on_terminal.launch = lambda config: configs.append(config) or 0
Path("train.py").touch()
app(["up"], standalone_mode=False)
Path("spotelastic.toml").write_text("nice = 5")
app(["up"], standalone_mode=False)
os.environ["SPOTELASTIC_NICE"] = "6"
app(["up"], standalone_mode=False)
app(["up", "--nice", "7"], standalone_mode=False)
before, *_, after = (check(config, Path.cwd()).spec for config in configs)
print(json.dumps({
    "package": spotelastic.__file__,
    "values": [config.nice for config in configs],
    "from python": JobConfig(nice=8).nice,
    "settings": after.settings.nice,
    "reference": configuration_reference.keys(),
    "differences": list(differences(before, after)),
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with the example applied."""
    folder = tmp_path_factory.mktemp("sources")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "spotelastic", folder / "spotelastic", ignore=ignored)
    shutil.copytree(ROOT / "infra", folder / "infra")
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Add a flag of `up`\n")[1]
    example = section.split("```diff\n")[1].split("```\n")[0]
    apply = ["git", "apply", "-"]
    subprocess.run(apply, cwd=folder, input=example, text=True, check=True)
    return folder


def run(copy: Path, cwd: Path, *args: str) -> str:
    """What a new Python says that imports the copy."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{copy}:{ROOT / 'tools/docs'}",
        "HOME": str(cwd),
        "COLUMNS": "80",
    }
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENT,
    ).stdout


def test_one_field_brings_flag_key_variable_reference_and_difference(
    copy: Path, tmp_path: Path
) -> None:
    seen: dict[str, Any] = json.loads(run(copy, tmp_path, "-c", LOOK))
    assert Path(seen["package"]).is_relative_to(copy)
    assert seen["values"] == [0, 5, 6, 7], "by default, from file, variable and flag"
    assert (seen["from python"], seen["settings"]) == (8, 7)
    row = r"^\| `nice` \| How much the script .* \| 0 \| `up` \|$"
    assert re.search(row, seen["reference"], re.MULTILINE)
    assert seen["differences"] == ["nice 0 -> 7"]


def test_its_help_stands_in_its_panel(copy: Path, tmp_path: Path) -> None:
    told = run(copy, tmp_path, "-m", "spotelastic", "up", "--help", "checkpoints")
    panel = told.split("╭─ Checkpoints and failures ")[1].split("╰")[0]
    assert re.search(r"│ --nice +N \[x>=0\] +How much the script", panel)
    first = run(copy, tmp_path, "-m", "spotelastic", "up", "--help")
    assert "--nice" not in first.split("More options")[0]
