"""Every example is run by each command of its own docstring, in a folder that has nothing else."""

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.processes.run_launcher import comm, descendants

pytestmark = [pytest.mark.programs, pytest.mark.timeout(1200)]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PROGRAMS = ("python ", "torchrun ", "spotelastic ")
NEEDED = {
    "accelerate_loop": "accelerate",
    "fabric_loop": "lightning",
    "huggingface_trainer": "transformers",
    "lightning_callback": "lightning",
    "lora": "peft",
}
TRAINERS = ("accelerate_loop", "fabric_loop", "huggingface_trainer", "lightning_callback")
STEPS = {"fsdp2_transformer": "", "lora": "", "nanogpt": "--steps "}
"""Examples that are told how many steps to make, and by what."""


def commands(file: Path) -> list[str]:
    told = ast.get_docstring(ast.parse(file.read_text())) or ""
    lines = (line.strip() for line in told.splitlines())
    return [line for line in lines if line.startswith(PROGRAMS)]


def test_every_example_says_how_it_is_run() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert files and all(commands(file) for file in files)


@pytest.mark.parametrize(
    ("name", "command"),
    [(file.stem, command) for file in sorted(EXAMPLES.glob("*.py")) for command in commands(file)],
)
def test_a_command_of_a_docstring_works(name: str, command: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDED.get(name, "torch"))
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    run(command, tmp_path)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", TRAINERS)
def test_several_workers_train_the_model_that_one_would(
    name: str, workers: int, tmp_path: Path
) -> None:
    """They exchange gradients, and the global batch is the same, also where shares differ."""
    pytest.importorskip(NEEDED[name])
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (together,) = commands(EXAMPLES / f"{name}.py")
    assert "--nproc-per-node 2" in together
    more = f"--nproc-per-node {workers} --rdzv-id together"
    found = trained(together.replace("--nproc-per-node 2", more), "together", tmp_path)
    expected = trained(f"python examples/{name}.py", name, tmp_path)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", STEPS)
def test_an_example_in_two_parts_ends_as_a_whole_one(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDED.get(name, "torch"))
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    begin = "spotelastic run --standalone --nproc-per-node 2 --rdzv-id"
    for run_id, steps in (("parts", 12), ("parts", 30), ("whole", 30)):
        run(f"{begin} {run_id} examples/{name}.py {STEPS[name]}{steps}", tmp_path)
    parts, whole = (final(run_id, tmp_path) for run_id in ("parts", "whole"))
    assert parts.keys() == whole.keys() and len(whole) > 4
    assert all(torch.equal(parts[key], whole[key]) for key in whole)


def test_an_interrupted_sweep_repeats_no_trial_and_finds_what_a_whole_one_does(
    tmp_path: Path,
) -> None:
    """A worker is killed in one trial, and the command is ended in another and given again."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    begin = "spotelastic run --standalone --nproc-per-node 2 --snapshot-every 7 --rdzv-id"
    whole = run(f"{begin} whole examples/sweep.py --steps 400", tmp_path)
    sweep = f"{begin} parts examples/sweep.py --steps 400"
    with goes_on(sweep, tmp_path) as first:
        told = until(first, "trial 1")
        worker = next(pid for pid in descendants(first.pid) if comm(pid) == "se-worker-1")
        os.kill(worker, signal.SIGKILL)
        told += until(first, "trial 2")
        first.send_signal(signal.SIGINT)
        told += first.communicate()[0]
    assert first.returncode != 0, "it was ended before all trials had been made"
    told += run(sweep, tmp_path)
    trials = re.findall("trial ([0-9]+), {", told)
    assert trials == [*map(str, range(6))], "each trial has ended once"
    assert re.findall("(?:trial|best of) .*", told) == re.findall("(?:trial|best of) .*", whole)
    parts, expected = (final(run_id, tmp_path) for run_id in ("parts", "whole"))
    assert parts.keys() == expected.keys() and len(expected) > 4
    assert all(torch.equal(parts[key], expected[key]) for key in expected)


@contextmanager
def goes_on(command: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def until(process: "subprocess.Popen[str]", words: str) -> str:
    """What is printed up to a line with these words."""
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        if words in line:
            return told
    raise AssertionError(f"{words!r} was never printed: {told}")


def final(run_id: str, folder: Path) -> dict[str, torch.Tensor]:
    """The parameters and the optimizer's state at the end of a run."""
    found: dict[str, torch.Tensor] = {}

    def collect(value: object, name: str) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                collect(each, f"{name}.{key}")
        elif isinstance(value, torch.Tensor):
            found[name] = value

    run(f"spotelastic ckpt export runs/{run_id} {run_id}.pt", folder)
    collect(torch.load(folder / f"{run_id}.pt", weights_only=True), "")
    return found


def trained(command: str, run_name: str, folder: Path) -> dict[str, torch.Tensor]:
    run(command, folder)
    run(f"spotelastic ckpt export runs/{run_name} model.pt --part model", folder)
    loaded: dict[str, torch.Tensor] = torch.load(folder / "model.pt")
    (folder / "model.pt").unlink()
    return loaded


def run(command: str, folder: Path) -> str:
    """What a command prints that ends well."""
    done = subprocess.run(
        shlex.split(command),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """Where the programs of this environment are found first, as by its `activate`."""
    first = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{first}{os.pathsep}{os.environ['PATH']}",
        "SPOTELASTIC_HOME": str(folder / "home"),  # the user's own keeps no bucket of a test
    }
