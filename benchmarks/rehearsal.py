"""Benchmarks rehearsals: how many more steps a run makes at its start and later, and their time.

Two workers on this machine train the same script with rehearsals and without, in turn. Most of a
step is a pause, which stands for a device that computes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

JOB = Path(__file__).parent / "jobs" / "rehearsed.py"


def trained(mode: str, steps: int, pause: float) -> dict[str, Any]:
    """Return what a run has told."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "spotelastic", "run", "--standalone", "--nproc-per-node=2"]
        subprocess.run(
            [*command, "--storage", f"{folder}/storage", JOB, mode, str(steps), str(pause), result],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds of a step that are idle")
    parser.add_argument("--trials", type=int, default=2)
    options = parser.parse_args()
    on, off = [], []
    for _ in range(options.trials):
        on.append(trained("on", options.steps, options.pause))
        off.append(trained("off", options.steps, options.pause))
    early = [sum(made - 1 for at, made in run["again"].items() if int(at) <= 10) for run in on]
    later = [sum(made - 1 for at, made in run["again"].items() if int(at) > 10) for run in on]
    start = statistics.median(run["start"] for run in on) - statistics.median(
        run["start"] for run in off
    )
    print(f"at the start: {max(early)} more steps, {start:.2f} s (with one restore)")
    print(
        f"later: {max(later)} more of {options.steps} steps "
        f"({max(later) / options.steps:.2%} of them)"
    )
    print(f"without rehearsals: {sum(len(run['again']) for run in off)} steps made twice")


if __name__ == "__main__":
    main()
