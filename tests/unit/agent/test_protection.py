"""Workers and builds give up the precedence that a node's unit gives to its agent."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotelastic.aws.base.infra_files import infra
from spotelastic.protection import NICE, OOM_SCORE, PROTECTED, give_up, without

SHOW = (
    "import os; from pathlib import Path; print(os.getpriority(os.PRIO_PROCESS, 0), "
    "Path('/proc/self/oom_score_adj').read_text().strip(), 'SPOTELASTIC_PROTECTED' in os.environ)"
)
RAISE = (
    "import os, sys; from pathlib import Path; os.setpriority(os.PRIO_PROCESS, 0, -10); "
    "Path('/proc/self/oom_score_adj').write_text('-900'); os.execvp(sys.argv[1], sys.argv[1:])"
)
GIVE_UP = f"from spotelastic import protection; protection.give_up(); {SHOW}"


def may_raise() -> bool:
    done = subprocess.run([sys.executable, "-c", RAISE, "true"], check=False, capture_output=True)
    return done.returncode == 0


def shown(*command: str, protected: bool = True) -> list[str]:
    """What a command shows that an agent starts, whose unit has given it precedence."""
    environ = {name: value for name, value in os.environ.items() if name != PROTECTED}
    environ |= {PROTECTED: "1"} if protected else {}
    command = (sys.executable, "-c", RAISE, *command)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not may_raise(), reason="needs the rights of a node's root")
def test_who_gives_it_up_is_as_any_other_process() -> None:
    python = (sys.executable, "-c")
    assert shown(*python, SHOW) == ["-10", "-900", "True"], "children inherit it"
    assert shown(*python, GIVE_UP) == ["0", "0", "False"]
    assert shown(*python, GIVE_UP, protected=False) == ["-10", "-900", "False"], "a user's own"


@pytest.mark.skipif(not may_raise(), reason="needs the rights of a node's root")
def test_a_build_gives_it_up_and_keeps_its_arguments() -> None:
    inner = f"{SHOW}; import sys; print(sys.argv[1:])"
    build = (
        "import subprocess; from spotelastic.protection import without; "
        f"subprocess.run(without([{sys.executable!r}, '-c', {inner!r}, 'a b', '']))"
    )
    assert shown(sys.executable, "-c", build) == ["0", "0", "True", "['a", "b',", "'']"]


def test_the_score_by_which_the_kernel_chooses_is_given_up_and_a_lower_place_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before, after in (("-900", "0"), ("0", "0"), ("300", "300")):
        score = tmp_path / "oom_score_adj"
        score.write_text(before)
        give_up(score)
        assert score.read_text() == before, "the user's own"
        monkeypatch.setenv(PROTECTED, "1")
        give_up(score)
        assert score.read_text() == after
        assert PROTECTED not in os.environ


def test_a_build_on_a_node_is_run_with_its_arguments_and_exit_code() -> None:
    words = ["/bin/sh", "-c", 'printf "%s|" "$0" "$@"; exit 3', "a b", "", "c"]
    command = without(words, {PROTECTED: "1"})
    assert list(command) != words
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "a b||c|")


def test_what_has_no_precedence_is_run_as_it_is() -> None:
    assert without(["make", "all"], {}) == ["make", "all"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit_as_it_is_filled_in(tmp_path: Path) -> None:
    unit = infra("boot/spotelastic.service").read_text()
    unit = re.sub("^ExecStart=.*$", "ExecStart=/bin/true", unit, flags=re.MULTILINE)
    file = tmp_path / "spotelastic.service"
    file.write_text(unit.replace("@HOME@", "/opt/spotelastic").replace("@IMAGE@", "/usr/bin"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_gives_what_the_code_takes_back() -> None:
    unit = dict(re.findall(r"^(\w+)=(.+)$", infra("boot/spotelastic.service").read_text(), re.M))
    assert (int(unit["Nice"]), int(unit["OOMScoreAdjust"])) == (NICE, OOM_SCORE)
    assert f"\nEnvironment={PROTECTED}=1\n" in infra("boot/spotelastic.service").read_text()
