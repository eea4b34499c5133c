"""The command line as a whole: its help, its speed of import, its one-line errors."""

import errno
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.patience import PATIENT

from spotelastic.cli import main as main_module

HEAVY = ("torch", "boto3", "botocore", "moto", "grpc", "pyetcd", "numpy", "s3fs")
COMMANDS = (
    *("up", "ls", "status", "logs", "events", "report", "stop", "restart", "scale"),
    *("init", "doctor", "files", "shell", "interrupt", "replay", "down", "run"),
)


ENVIRONMENT = {
    "PATH": str(Path(sys.executable).parent),
    "SPOTELASTIC_HOME": "/nonexistent",
    "HOME": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
    "COLUMNS": "200",
}


def spotelastic(
    *args: str, cwd: Path | None = None, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spotelastic", *args],
        cwd=cwd,
        env=ENVIRONMENT | ({"SPOTELASTIC_HOME": str(home)} if home else {}),
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )


ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from spotelastic.cli.main import main
told = []
for line in json.loads(sys.argv[1]):
    sys.argv = ["spotelastic", *line]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    told.append((line, code, out.getvalue(), err.getvalue()))
json.dump(told, sys.stdout)
"""


def in_one_process(*lines: tuple[str, ...]) -> list[subprocess.CompletedProcess[str]]:
    """Each process spends half a second before it does anything."""
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(lines)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENT, check=False
    )
    assert done.returncode == 0, done.stderr
    return [subprocess.CompletedProcess(*told) for told in json.loads(done.stdout)]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("spotelastic sta", ["status"]),
        ("spotelastic up --max-", ["--max-price", "--max-cost", "--max-restarts"]),
        ("spotelastic ckpt ver", ["verify"]),
    ],
)
def test_a_shell_completes_commands_and_flags(typed: str, offered: list[str]) -> None:
    environment = {
        "_SPOTELASTIC_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    program = Path(sys.executable).with_name("spotelastic")
    told = subprocess.run(
        [program], env=environment, capture_output=True, text=True, timeout=PATIENT, check=True
    )
    assert told.stdout.split() == offered


@pytest.mark.parametrize("words", [("--help",), ("up", "--help")])
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    code = (
        f"import sys; sys.argv = ['spotelastic', *{words!r}]\n"
        "from spotelastic.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heavy: []" in told.stdout


def test_help_lists_the_commands() -> None:
    told = spotelastic("--help").stdout
    assert all(f" {command} " in told for command in COMMANDS)
    assert " boot " not in told


def test_the_version_is_told() -> None:
    assert spotelastic("--version").stdout.startswith("spotelastic 0.")


def test_every_command_explains_itself_with_an_example() -> None:
    helps = in_one_process(*((command, "--help") for command in COMMANDS))
    for command, told in zip(COMMANDS, helps, strict=True):
        assert told.returncode == 0, command
        assert "Example" in told.stdout, command
        assert f"spotelastic {command}" in told.stdout.split("Example")[1]


def test_without_a_local_cloud_each_command_says_so_in_one_line() -> None:
    asking = ("status", "logs", "events", "report", "stop", "restart", "scale", "down", "ls")
    for told in in_one_process(*((command, "--local") for command in asking)):
        assert (told.returncode, told.stdout) == (2, ""), told
        assert told.stderr.count("\n") == 1, told
        assert "no local cloud is running" in told.stderr, told


MISTYPED = {
    "frobnicate": "no such command: frobnicate",
    "up --local --frobnicate x.py": "no such option: --frobnicate",
    "up --local --min two x.py": "--min: needs a whole number",
    "interrupt i-1 --in soon": "--in: ",
    "interrupt i-1 --in inf": "--in: ",
    "logs --rank -1": "--rank: ",
}


def test_a_mistyped_line_is_told_in_one() -> None:
    lines = (tuple(line.split()) for line in MISTYPED)
    for words, told in zip(MISTYPED.values(), in_one_process(*lines), strict=True):
        assert (told.returncode, told.stdout) == (2, ""), told
        assert told.stderr.count("\n") == 1, told
        assert words in told.stderr
        assert "--help" in told.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("statsu", "no such command: statsu; did you mean status?"),
        ("up --minn 2 x.py", "no such option: --minn; did you mean --min?"),
        ("run --nprocs-per-node 2 x.py", "--nprocs-per-node; did you mean --nproc-per-node?"),
        ("--verson", "no such option: --verson; did you mean --version?"),
        ("up --gpus 0", "--gpus: needs to be greater than or equal to 1"),
        ("run --max-restarts two x.py", "--max-restarts two: needs a whole number"),
        ("up --min", "--min: needs a value"),
        ("run --nnodes", "--nnodes: needs a value"),
        ("up --plan=3 x.py", "--plan: takes no value"),
        ("run --gang=3 x.py", "--gang: takes no value"),
        ("status a b c", "not understood: b c"),
        ("ckpt pin", "URL[@STEP] is missing"),
    ],
)
def test_both_parsers_speak_alike(line: str, words: str) -> None:
    with pytest.raises(Exception) as error:
        main_module.run_command(line.split())
    told = main_module.told_by_parser(error.value) or str(error.value)
    assert words in told and "--help`)" in told


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("scale --max 2 --name web", "spotelastic scale web --max 2"),
        ("status --name=web --json", "spotelastic status web --json"),
        ("stop --name", "spotelastic stop NAME"),
    ],
)
def test_a_cluster_that_is_named_by_an_option_is_told_how_to_be_named(
    line: str, right: str
) -> None:
    with pytest.raises(Exception) as error:
        main_module.run_command(line.split())
    told = main_module.told_by_parser(error.value, line.split())
    assert told is not None and told.startswith(
        f"no such option: --name; a cluster is named without one: `{right}`"
    )


def test_without_any_cloud_both_ways_out_are_named() -> None:
    told = spotelastic("status")
    assert told.returncode == 2
    assert "up --local" in told.stderr
    assert "AWS_PROFILE" in told.stderr


def test_a_mistake_in_up_is_one_line_and_starts_nothing(tmp_path: Path) -> None:
    told = spotelastic("up", "--local", "absent.py", cwd=tmp_path, home=tmp_path / "home")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == "spotelastic: there is no script absent.py\n"
    assert not (tmp_path / "home").exists()


def test_an_option_that_does_not_exist_is_a_usage_error() -> None:
    told = spotelastic("up", "--no-such-flag", "x.py")
    assert told.returncode == 2
    assert "--no-such-flag" in told.stderr


def test_deleting_checkpoints_wants_the_cluster_named() -> None:
    told = spotelastic("down", "--delete-data")
    assert told.returncode == 2
    assert "name the cluster whose checkpoints to delete" in told.stderr


@pytest.mark.parametrize("besides", [("demo",), ("--delete-data",)])
def test_the_shared_network_is_removed_by_a_command_of_its_own(besides: tuple[str, ...]) -> None:
    """Nobody who takes one cluster down means the network of all of them."""
    told = spotelastic("down", "--network", *besides)
    assert (told.returncode, told.stdout) == (2, "")
    assert "--network: is given alone" in told.stderr


@pytest.mark.parametrize(
    ("command", "some"),
    [
        ("up", {"Nodes", "The job", "Money and time", "After the job"}),
        ("run", {"Nodes", "Workers", "Output", "Checkpoints"}),
    ],
)
def test_the_help_is_grouped_and_no_group_is_long(command: str, some: set[str]) -> None:
    told = spotelastic(command, "--help").stdout
    panels = [panel.splitlines() for panel in told.split("╭─ ")[1:]]
    titles = [panel[0].split(" ─")[0] for panel in panels]
    assert some <= set(titles)
    assert not re.search(r"--[\w,-]+…", told), "80 columns show every name of an option whole"
    assert max(len(panel) for panel in panels) < 30


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("up", "--nprocs-per-node", "2", "x.py"), "--nproc-per-node"),
        (("up", "--instance-tpes", "g5.xlarge", "x.py"), "--instance-types"),
        (("statsu",), "status"),
        (("ckpt", "verfy", "runs/x"), "verify"),
    ],
)
def test_what_was_meant_is_offered(typed: tuple[str, ...], meant: str) -> None:
    told = spotelastic(*typed)
    assert told.returncode == 2 and told.stderr.count("\n") == 1
    assert meant in told.stderr


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "/x: No space .*: make room"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000), "x{200}: File name too"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "^/x: Permission denied: your"),
        (OSError(errno.EIO, "Input/output error"), "^Input/output error: a disk"),
        (OSError(errno.EMFILE, "Too many open files"), r"^Too many open files: .*ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
    ],
)
def test_what_a_machine_lacks_is_one_line(error: Exception, told: str) -> None:
    line = main_module.told_by_machine(error)
    assert line is not None and re.search(told, line)


def test_a_defect_is_no_fault_of_the_machine() -> None:
    assert main_module.told_by_machine(RuntimeError("other")) is None
    assert main_module.told_by_machine(FileNotFoundError(errno.ENOENT, "No such file")) is None


LIMITED = """
import resource, sys
from spotelastic.cli import main
from spotelastic.launcher import run
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
run.serve = lambda *_: sys.exit(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 256)
sys.argv[1:] = ["run", "--standalone", {script!r}]
main.main()
"""


@pytest.mark.parametrize(("hard", "code"), [(100, 2), (1024, 1)])
def test_a_low_limit_of_open_files_is_raised_or_told(hard: int, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    limited = LIMITED.format(hard=hard, script=str(script))
    done = subprocess.run(
        [sys.executable, "-c", limited],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENT,
    )
    assert done.returncode == code
    told = "spotelastic: this process may open 100 files: a run needs 256 (ulimit -n)\n"
    assert done.stderr == (told if code == 2 else "")


NO_PORT = """
import errno, sys
from spotelastic.cli import main
from spotelastic.launcher import run
def none(*_):
    raise OSError(errno.EADDRINUSE, "Address already in use")
run.serve = none
sys.argv[1:] = ["run", "--standalone", {script!r}]
main.main()
"""


def test_a_machine_without_a_free_port_is_told_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    code = NO_PORT.format(script=str(script))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENT
    )
    assert done.returncode == 2
    assert re.fullmatch("spotelastic: Address already in use: no port is free .*\n", done.stderr)
