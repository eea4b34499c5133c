"""Runs cases in which workers rest, all from one process that has imported torch."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.places import TESTS
from support.processes.patience import CASES_WITHIN

Told = dict[str, Any]


def told_in(folder: Path, cases: Iterable[str], within: float = CASES_WITHIN) -> dict[str, Told]:
    """Return what workers have told in each case. Files of it are in the folder."""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.in_place.resting_cases", folder, *cases],
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=within,
    )
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
