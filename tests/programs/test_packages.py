"""States that other packages make come back, to as many ranks and to others: see packages.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packages import CASES

pytestmark = [pytest.mark.programs, pytest.mark.timeout(600)]
TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("name", CASES)
def test_what_a_package_makes_comes_back(name: str, tmp_path: Path) -> None:
    package = CASES[name][0]
    pytest.importorskip(package, reason=f"{package} is not installed here", exc_type=Exception)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "programs.packages", name, tmp_path],
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
