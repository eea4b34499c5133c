"""What is missing where an extra was not installed is said with the command that brings it."""

import re
import subprocess
import sys
from importlib.metadata import requires


def test_a_name_for_scripts_says_what_to_install() -> None:
    told = "spotelastic.PerRank needs torch: pip install 'spotelastic[train]'"
    assert _without("torch") == f"ModuleNotFoundError: {told}"


def test_another_module_that_is_missing_is_named_as_python_names_it() -> None:
    assert "No module named 'torch.nn" in _without("torch.nn")


def test_all_brings_what_training_and_the_local_cloud_need() -> None:
    brought = [line for line in requires("spotelastic") or () if "extra == 'all'" in line]
    names = {re.split(r"[\[>=]", line)[0] for line in brought}
    assert names == {"torch", "numpy", "moto"}


def _without(module: str) -> str:
    """The last line that a script prints where a module is missing."""
    code = f"import sys; sys.modules[{module!r}] = None; from spotelastic import PerRank"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]
