"""`spotelastic.toml`, `SPOTELASTIC_*` and flags: what `up` is told in the end."""

import re
import sys
from pathlib import Path

import pytest

from spotelastic.cli.commands import up_on_terminal
from spotelastic.cli.main import main
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check
from spotelastic.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[JobConfig]:
    """What `up` would have launched."""
    requests: list[JobConfig] = []

    def launched(request: JobConfig) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr(up_on_terminal, "launch", launched)
    return requests


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spotelastic", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_flag_wins_over_a_variable_and_that_over_the_file(
    folder: Path, asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spotelastic.toml").write_text(
        'script = "a.py"\nargs = ["--lr", "1"]\nmin = 2\nmax = 6\nname = "from-file"\n'
        'instance-types = ["g5.xlarge", "g6.xlarge"]\nlocal = true\n'
    )
    monkeypatch.setenv("SPOTELASTIC_MAX", "7")
    monkeypatch.setenv("SPOTELASTIC_MIN", "3")
    assert run(monkeypatch, "up", "--min", "4") == 0
    (request,) = asked
    assert (request.min, request.max, request.name) == (4, 7, "from-file")
    assert (request.script, request.args, request.local) == (Path("a.py"), ("--lr", "1"), True)
    assert request.instance_types == ("g5.xlarge", "g6.xlarge")


def test_what_the_file_switches_on_a_flag_switches_off(
    folder: Path, asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = ("local", "gang", "drill", "detach", "keep", "keep-failed")
    (folder / "spotelastic.toml").write_text(
        'script = "a.py"\n' + "".join(f"{name} = true\n" for name in switches)
    )
    off = ["--aws", *(f"--no-{name}" for name in switches[1:])]
    assert run(monkeypatch, "up") == 0
    assert run(monkeypatch, "up", *off) == 0
    for request, on in zip(asked, (True, False), strict=True):
        switched = request.local, request.gang, request.drill
        assert (*switched, request.detach, request.keep, request.keep_failed) == (on,) * 6


def test_limits_and_intervals_are_told_the_same_three_ways(
    folder: Path, asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spotelastic.toml").write_text(
        'script = "a.py"\nsnapshot-every = 20\ncheckpoint-every = "10m"\nkeep-last = 4\n'
        "gang = true\nstall-timeout = 60\nlinger = 0\n"
    )
    monkeypatch.setenv("SPOTELASTIC_KEEP_LAST", "5")
    monkeypatch.setenv("SPOTELASTIC_EXIT_BARRIER_TIMEOUT", "45")
    monkeypatch.setenv("SPOTELASTIC_READ", "s3://a/data,s3://b")
    assert run(monkeypatch, "up", "--keep-every", "1000") == 0
    (request,) = asked
    assert (request.snapshot_every, request.checkpoint_every) == ("20", "10m")
    assert (request.keep_last, request.keep_every) == (5, 1000)
    assert (request.gang, request.stall_timeout, request.exit_barrier_timeout) == (True, 60.0, 45.0)
    assert request.linger == "0"
    assert request.read == ("s3://a/data", "s3://b")


def test_what_init_writes_is_what_up_does(
    folder: Path, asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "src").mkdir()
    (folder / "src" / 'my "train".py').touch()
    assert run(monkeypatch, "init", 'src/my "train".py', "--instance-types", "p4d.24xlarge, x") == 0
    assert run(monkeypatch, "up") == 0
    (request,) = asked
    assert request.script == Path('src/my "train".py')
    assert (request.min, request.max) == (2, 8)
    assert request.instance_types == ("p4d.24xlarge", "x")


def test_what_init_shows_as_examples_is_what_up_takes(
    folder: Path, asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").touch()
    assert run(monkeypatch, "init") == 0
    file = folder / "spotelastic.toml"
    text, examples = re.subn(r"(?m)^# ([a-z-]+ = )", r"\1", file.read_text())
    assert examples > 10
    file.write_text(text)
    assert run(monkeypatch, "up") == 0
    (request,) = asked
    assert request.instance_types == ("g5.xlarge",)
    assert (request.args, request.local, request.setup) == (
        ("--epochs", "3"),
        True,
        "python -m nltk.downloader punkt",
    )
    assert (request.env, request.secret, request.read) == (
        ("EPOCHS=3",),
        ("WANDB_API_KEY",),
        ("s3://bucket/data",),
    )
    assert (request.snapshot_every, request.checkpoint_every, request.keep_last) == ("20", "10m", 3)
    assert (request.placement, request.linger, len(request.subnets)) == ("cluster", "10m", 3)


def test_init_overwrites_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "spotelastic.toml").write_text("mine")
    assert run(monkeypatch, "init") == 2
    assert (folder / "spotelastic.toml").read_text() == "mine"


def test_init_where_nobody_may_write_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()  # as in one of another user's, which does not stop root
    assert run(monkeypatch, "init") == 2
    told = capsys.readouterr().err
    assert told.startswith("spotelastic: cannot write spotelastic.toml here: No such file")
    assert told.count("\n") == 1


def test_without_a_script_train_py_is_meant(
    folder: Path, asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, "up", "--local", "--min", "2") == 0
    (config,) = asked
    with pytest.raises(UsageError, match=r"no script was given and there is no train\.py here"):
        check(config, folder)
    (folder / "train.py").touch()
    assert check(config, folder).spec.script == "train.py"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("mim = 2", "there is no key mim: did you mean min?"),
        ("instance_types = 'a'", "did you mean instance-types?"),
        ("min = 'two'", 'spotelastic.toml: min = "two": '),
        ("min 2", "spotelastic.toml is not TOML"),
        ("min = " + "[" * 2000, "spotelastic.toml is nested too deeply"),
        ("[up]\nmin = 2", "there is no key up"),
        ("fresh = true", "spotelastic.toml: fresh is for a single command"),
        ("plan = true", "spotelastic.toml: plan is for a single command"),
        ("min = true", "spotelastic.toml: min = true: needs a whole number"),
        ("min = 2.5", "spotelastic.toml: min = 2.5: needs a whole number"),
        ("gang = 'perhaps'", 'spotelastic.toml: gang = "perhaps": needs true or false'),
        ("gpus = 0", "spotelastic.toml: gpus = 0: needs to be at least 1"),
        ("max-cost = nan", "spotelastic.toml: max-cost = NaN: needs a number"),
        ("zones = 'all'", 'spotelastic.toml: zones = "all": expected pack or spread'),
        ("name = true", "spotelastic.toml: name = true: needs a text"),
        ("name = 3", "spotelastic.toml: name = 3: needs a text, in quotes"),
        ("script = 3", "spotelastic.toml: script = 3: needs a text, in quotes"),
        ("local = 'yes'", 'spotelastic.toml: local = "yes": needs true or false'),
        ("min = '2'", 'spotelastic.toml: min = "2": needs a whole number, without quotes'),
        ("max-cost = '2'", 'spotelastic.toml: max-cost = "2": needs a number, without quotes'),
        ("read = {a = 1}", 'spotelastic.toml: read = {"a": 1}: needs a list of texts'),
        ("subnets = ','", 'spotelastic.toml: subnets = ",": name at least one'),
    ],
)
def test_a_mistake_in_the_file_is_named(
    folder: Path,
    asked: list[JobConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str,
    words: str,
) -> None:
    (folder / "train.py").touch()
    (folder / "spotelastic.toml").write_text(content)
    assert run(monkeypatch, "up") == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1 and not asked


def test_a_mistake_in_a_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPOTELASTIC_MIN", "many")
    assert run(monkeypatch, "up", "train.py") == 2
    assert 'SPOTELASTIC_MIN = "many"' in capsys.readouterr().err


def test_the_scripts_arguments_are_divided_as_a_shell_does(
    asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPOTELASTIC_ARGS", "--epochs 3 --note 'two words'")
    assert run(monkeypatch, "up", "a.py") == 0
    assert run(monkeypatch, "up", "a.py", "--", "--epochs", "4") == 0
    assert [request.args for request in asked] == [
        ("--epochs", "3", "--note", "two words"),
        ("--epochs", "4"),
    ]
    monkeypatch.setenv("SPOTELASTIC_ARGS", "--note 'two")
    assert run(monkeypatch, "up", "a.py") == 2
    told = capsys.readouterr().err
    assert told == 'spotelastic: SPOTELASTIC_ARGS = "--note \'two": no closing quotation\n'


def test_all_that_comes_after_the_script_is_the_scripts(
    asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ("--steps", "10", "-v", "data.bin"),
        ("--", "--local", "--min", "4"),
        ("--steps", "10", "--", "-x"),
        ("--name=mine", "--env", "test"),
    ):
        assert run(monkeypatch, "up", "--min", "2", "a.py", *words) == 0
    assert [request.min for request in asked] == [2] * 4
    assert [request.args for request in asked] == [
        ("--steps", "10", "-v", "data.bin"),
        ("--local", "--min", "4"),
        ("--steps", "10", "--", "-x"),
        ("--name=mine", "--env", "test"),
    ]
    told = capsys.readouterr().err
    assert told == (
        "note: --name, --env after the script go to the script; flags of `up` come before it\n"
    )
    assert run(monkeypatch, "up", "a.py", "--max-cost=5") == 2
    told = capsys.readouterr().err
    assert told.startswith("spotelastic: --max-cost comes after the script") and len(asked) == 4


def test_aws_s_own_variable_does_not_win_over_the_file(
    folder: Path, asked: list[JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spotelastic.toml").write_text('script = "a.py"\nregion = "eu-west-1"\n')
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert run(monkeypatch, "up") == 0
    monkeypatch.setenv("SPOTELASTIC_REGION", "ap-south-1")
    assert run(monkeypatch, "up") == 0
    assert run(monkeypatch, "up", "--region", "sa-east-1") == 0
    assert [request.region for request in asked] == ["eu-west-1", "ap-south-1", "sa-east-1"]
