"""Which run uses a storage folder, and what the next one is told of it."""

from pathlib import Path

import msgspec
import pytest
from spotelastic_checkpoints.commits import Latest
from spotelastic_checkpoints.wire import Commit

from spotelastic.cli import run_storage
from spotelastic.cli.run_flags import parse
from spotelastic.errors import UsageError


def run(folder: Path, *args: str, alone: bool = True, code: int = 0) -> list[str]:
    said: list[str] = []
    options = parse(args, {})
    with run_storage.used(options, str(folder), alone=alone, say=said.append) as tell_end:
        tell_end(code)
    return said


def trained(folder: Path, step: int) -> None:
    latest = Latest("default", 1, Commit(1, step), "")
    (folder / "LATEST").write_bytes(msgspec.json.encode(latest))


def test_two_living_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    one, other = parse(["a.py", "--steps", "40"], {}), parse(["b.py"], {})
    with run_storage.used(one, str(tmp_path), alone=True, say=print):
        for alone in (True, False):
            with (
                pytest.raises(UsageError, match=r"another run \(a.py --steps 40, begun .* pid"),
                run_storage.used(other, f"file://{tmp_path}", alone=alone, say=print),
            ):
                pytest.fail("both have it")
    assert run(tmp_path, "b.py") == [], "it is free again, and nothing is in it"


def test_the_nodes_of_one_run_share_it_and_exclude_one_that_is_alone(tmp_path: Path) -> None:
    options = parse(["a.py"], {})
    with (
        run_storage.used(options, str(tmp_path), alone=False, say=print),
        run_storage.used(options, str(tmp_path), alone=False, say=print),
        pytest.raises(UsageError, match="another run"),
        run_storage.used(options, str(tmp_path), alone=True, say=print),
    ):
        pytest.fail("one that is alone has it")


def test_a_run_says_whose_state_it_goes_on_from(tmp_path: Path) -> None:
    run(tmp_path, "a.py", "--steps", "40", code=1)
    trained(tmp_path, 40)
    same = run(tmp_path, "a.py", "--steps", "40")
    assert len(same) == 1
    assert same[0].startswith("resuming from step 40 in")
    assert "by a.py --steps 40; begin afresh with --fresh" in same[0]
    assert "has succeeded" in run(tmp_path, "a.py", "--steps", "40")[1]
    assert "other arguments: --steps 40" in run(tmp_path, "a.py", "--steps", "50")[1]
    assert "another script, a.py" in run(tmp_path, "b.py", code=1)[1]
    again = run(tmp_path, "c.py")
    assert "by a.py --steps 50" in again[0], "b.py has failed, and saved nothing"


def test_fresh_keeps_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "default"
    folder.mkdir()
    for number in (1, 2):
        trained(folder, 40)
        said = run(folder, "--fresh", "a.py")
        assert len(said) == 1 and f"default.{number}" in said[0]
        assert not (folder / "LATEST").exists()
        assert (tmp_path / f"default.{number}" / "LATEST").exists()
    assert run(folder, "--fresh", "a.py") == [], "there was nothing to be kept"
    options = parse(["--fresh", "a.py"], {})
    with (
        pytest.raises(UsageError, match="--fresh: is not for an object store"),
        run_storage.used(options, "s3://b/x", alone=True, say=print),
    ):
        pytest.fail("taken")


def test_fresh_takes_nothing_from_a_run_that_lives(tmp_path: Path) -> None:
    with run_storage.used(parse(["a.py"], {}), str(tmp_path), alone=True, say=print):
        trained(tmp_path, 7)
        with pytest.raises(UsageError, match="another run"):
            run(tmp_path, "--fresh", "b.py")
        assert (tmp_path / "LATEST").exists()


@pytest.mark.parametrize("name", ["", "..", "../x", "a/../../x", "/x", "a\0b", ".", "a//b", "a/"])
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--rdzv-id"):
        run_storage.of(parse([f"--rdzv-id={name}", "a.py"], {}))


def test_no_secret_is_kept() -> None:
    args = ["--token", "x1", "--api-key=x2", "AWS_SECRET=x3", "--hf-token", "--steps", "4"]
    kept = run_storage.without_secrets(args)
    assert kept == ["--token", "***", "--api-key=***", "AWS_SECRET=***", *args[4:]]
