"""Scripts as people write them, changed by `adapt`, lose a worker and go on where they were.

One of them runs with all other tests, the dozen with `make test-programs`.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spotelastic.client.adapt.adapt import adapted
from spotelastic.client.adapt.new_script import TEXT

SUPPORT = Path(__file__).parents[1] / "support"
FATAL = 17
"""The optimizer's step after which rank 0 is killed, once."""
STEPS = {
    "amp_and_bar": 30,
    "ddp_epochs": 24,
    "main_epochs": 64,
    "nanogpt_style": 50,
    "new_script": 96,
    "plain_loop": 60,
    "steps_in_epochs": 36,
    "tabs_and_globals": 36,
    "two_optimizers": 80,
}
"""By script: how often it calls the step of an optimizer."""
PER_STEP = {"two_optimizers": 2}
WORKERS = {"ddp_epochs": 2, "new_script": 2}
UNDISTURBED, SHOWN = 1 << 30, 3
"""A step that none reaches, and how many lines are compared that a script prints at its end."""


def test_each_script_is_tried() -> None:
    names = {file.stem for file in (SUPPORT / "scripts/plain_scripts").glob("*.py")}
    assert names | {"new_script"} == {*STEPS}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak if name == "ddp_epochs" else pytest.mark.programs)
        for name in STEPS
    ],
)
def test_an_adapted_script_goes_on_where_it_was_killed(name: str, tmp_path: Path) -> None:
    """What it prints at its end is what it prints without that, to the last digit."""
    script = tmp_path / "train.py"
    if name == "new_script":
        script.write_text(TEXT.replace("{name}", "train.py"))
    else:
        text = (SUPPORT / f"scripts/plain_scripts/{name}.py").read_text()
        script.write_text(adapted(text, name, workers=2).after)
    folder = tmp_path / "killed"
    folder.mkdir()
    told = trained(script, folder, WORKERS.get(name, 1), FATAL)
    lives: dict[int, list[int]] = {
        int(file.name.split("-")[1]): [] for file in folder.glob("steps-*")
    }
    for file in sorted(folder.glob("steps-*"), key=lambda file: file.stat().st_mtime):
        lives[int(file.name.split("-")[1])].append(file.stat().st_size)
    assert set(lives) == set(range(WORKERS.get(name, 1)))
    assert all((folder / f"ended-{rank}").exists() for rank in lives)
    (resumed,) = map(int, re.findall(r"from step (\d+) in memory", told))
    left = STEPS[name] - resumed * PER_STEP.get(name, 1)
    assert 0 < resumed * PER_STEP.get(name, 1) < FATAL
    assert lives[0] == [FATAL, left], "what was saved is not trained again, and the rest is"
    (tmp_path / "undisturbed").mkdir()
    as_ever = trained(script, tmp_path / "undisturbed", WORKERS.get(name, 1), UNDISTURBED)
    assert printed(told)[-SHOWN:] == printed(as_ever)[-SHOWN:]


def printed(told: str) -> list[str]:
    return [line for line in told.splitlines() if line.startswith("[0] ")]


def trained(script: Path, folder: Path, workers: int, fatal: int) -> str:
    """What `spotelastic run` prints of a script that is killed once, at the step `fatal`."""
    run = ["-m", "spotelastic", "run", "--standalone", "--nproc-per-node", str(workers)]
    command = [*run, "--snapshot-every", "1", str(SUPPORT / "scripts/dies_once.py"), str(folder)]
    done = subprocess.run(
        [sys.executable, *command, str(fatal), str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    return told
