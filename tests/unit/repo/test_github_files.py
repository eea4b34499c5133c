"""Files that GitHub reads are as its schemas want them, and workflows call what there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.processes.patience import PATIENT

import spotelastic

ROOT = Path(spotelastic.__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("dependabot", [GITHUB / "dependabot.yml"]),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE/config.yml"]),
        (
            "github-issue-forms",
            [GITHUB / "ISSUE_TEMPLATE/bug.yml", GITHUB / "ISSUE_TEMPLATE/feature.yml"],
        ),
    ],
)
def test_they_follow_the_schemas(schema: str, files: list[Path]) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run(
        [*checker, *map(str, files)], capture_output=True, text=True, check=False, timeout=PATIENT
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_little_and_calls_targets_of_the_makefile(workflow: Path) -> None:
    text = workflow.read_text()
    read = yaml.safe_load(text)
    assert read["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in read["jobs"].values())
    unpinned = [used for used in re.findall(r"uses: (\S+)", text) if not _pinned(used)]
    assert unpinned == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    listed = [value for job in read["jobs"].values() for value in _matrix(job)]
    called = {*re.findall(r"make ([a-z-]+)", text), *(value.split()[0] for value in listed)}
    assert called
    assert called <= targets


def _pinned(action: str) -> bool:
    return re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", action) is not None


def _matrix(job: dict[str, dict[str, dict[str, list[str]]]]) -> list[str]:
    return job.get("strategy", {}).get("matrix", {}).get("target", [])
