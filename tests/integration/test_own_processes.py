"""Nothing that lies around gets into our own processes, and all of it reaches the user's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spotelastic_checkpoints import isolated
from support.processes.patience import PATIENT

SHADOWED = ("signal", "socket", "random", "msgspec", "grpc", "selectors", "torch")
IN_THE_WAY = {
    "PYTHONWARNINGS": "error",
    "PYTHONIOENCODING": "ascii",
    "ETCD_NAME": "other",
    "ETCD_DISCOVERY": "http://127.0.0.1:9/",
    "ETCD_FORCE_NEW_CLUSTER": "true",
    "ETCD_LISTEN_METRICS_URLS": "http://203.0.113.1:1",
    "ETCD_CLIENT_CERT_AUTH": "true",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
}
SCRIPT = f"""\
import os
for name in {sorted(IN_THE_WAY)}:
    print(name, os.environ[name])
"""


@pytest.fixture
def strewn(tmp_path: Path) -> Path:
    """A folder with modules that nobody of ours should import."""
    for name in SHADOWED:
        text = f"raise SystemExit('{name}.py of the working folder was imported')"
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.soak
def test_a_run_heeds_neither_the_working_folder_nor_variables_of_other_programs(
    strewn: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spotelastic.run", "--standalone", "sub/script.py"],
        cwd=strewn, env={**os.environ, **IN_THE_WAY}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=PATIENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = [f"[0] {name} {value}" for name, value in sorted(IN_THE_WAY.items())]
    assert done.stdout.splitlines() == expected, "a worker gets them as they are"


def test_the_command_line_imports_nothing_of_the_working_folder(strewn: Path) -> None:
    (strewn / "typer.py").write_text("raise SystemExit('typer.py was imported')")
    done = subprocess.run(
        [sys.executable, "-m", "spotelastic", "--help"],
        cwd=strewn, capture_output=True, text=True, check=False, timeout=PATIENT,
    )  # fmt: skip
    assert done.returncode == 0 and "run" in done.stdout, done.stderr


def test_a_process_of_ours_has_the_library_first_and_is_not_in_the_working_folder(
    strewn: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("path")
    for name in ("json", "socket", "random"):
        (path / f"{name}.py").write_text(f"raise SystemExit('{name}.py was imported')")
    given = {"PYTHONPATH": str(path), "PYTHONINSPECT": "1", **IN_THE_WAY}
    env = isolated.environment({**os.environ, **given})
    assert not {"PYTHONWARNINGS", "ETCD_NAME"} & env.keys()
    done = subprocess.run(
        isolated.command("spotelastic_checkpoints.daemon.process", "--help"),
        cwd=strewn, env=env, capture_output=True, text=True, check=False, timeout=PATIENT,
    )  # fmt: skip
    assert done.returncode == 0 and "--arena" in done.stdout, done.stderr
