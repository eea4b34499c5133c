"""Which run uses a storage folder, and what the next one is told of it."""

from functools import partial
from pathlib import Path

import pytest
from spotelastic_checkpoints import provenance
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.tenancy import TenancyPace
from spotelastic_checkpoints.errors import StorageOwned
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Commit
from support.draws import soaked
from support.processes.patience import PATIENT
from support.saving.commit_protocol import put_all
from support.saving.s3_servers import s3_endpoint, use_s3
from support.store.memory_store import MemoryStore

from spotelastic.clock import steady
from spotelastic.errors import UsageError
from spotelastic.launcher import run_storage
from spotelastic.launcher.flags import parse
from spotelastic.launcher.other_nodes import OtherNodes
from spotelastic.store.keys import Keys

__all__ = ["s3_endpoint"]
claimed = partial(run_storage.claimed, pace=TenancyPace(answer_within=PATIENT))
"""By whom no run that lives is taken for dead, however slowly it answers."""


@pytest.fixture(params=["folder", *soaked(["s3"])])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return f"file://{tmp_path}"
    return f"s3://{use_s3(monkeypatch, request.getfixturevalue('s3_endpoint'))}/run"


def run(
    storage: Path | str, *args: str, others: OtherNodes | None = None, code: int = 0
) -> list[str]:
    said: list[str] = []
    options = parse(args, {})
    with claimed(options, str(storage), others=others, say=said.append) as use:
        use.ended(code)
    return said


def trained(storage: Path | str, step: int) -> None:
    commits = Commits(open_storage(str(storage)), "default")
    epoch = commits.claim().epoch
    put_all(commits, epoch, step)
    assert commits.commit(Commit(epoch, step), epoch)


def test_two_living_runs_do_not_share_a_storage(storage: str) -> None:
    one, other = parse(["a.py", "--steps", "40"], {}), parse(["b.py"], {})
    elsewhere = OtherNodes(MemoryStore(steady), "default", ("a:1",))
    with claimed(one, storage, others=None, say=print):
        for others in (None, elsewhere):
            with (
                pytest.raises(UsageError, match=r"another run \(a.py --steps 40, begun .* pid"),
                claimed(other, storage, others=others, say=print),
            ):
                pytest.fail("both have it")
    assert run(storage, "b.py") == [], "it is free again, and nothing is in it"


def test_a_storage_that_belongs_to_another_run_is_refused_unless_it_is_taken_over(
    storage: str,
) -> None:
    trained(storage, 20)
    told = "belongs to the run default, not to b: use another storage, or take it over "
    with pytest.raises(UsageError, match=rf"{told}\(--take-over\)"):
        run(storage, "--rdzv-id", "b", "b.py")
    assert run(storage, "--rdzv-id", "b", "--take-over", "b.py")[0].startswith("resuming")


def test_the_nodes_of_one_run_share_it_and_exclude_others(storage: str) -> None:
    options, said = parse(["a.py"], {}), list[str]()
    etcd = MemoryStore(steady)
    one, other = (OtherNodes(etcd, "default", (at,)) for at in ("a:1", "b:1"))
    with claimed(options, storage, others=one, say=said.append):
        etcd.put(Keys("default").live("one"), b"")
        with claimed(parse(["--fresh", "a.py"], {}), storage, others=other, say=said.append):
            assert said == ["--fresh has no effect: the run has already begun"]
            for stranger in (None, OtherNodes(MemoryStore(steady), "default", ("c:1",))):
                with (
                    pytest.raises(UsageError, match="another run"),
                    claimed(options, storage, others=stranger, say=print),
                ):
                    pytest.fail("another run has it")


def test_a_run_says_at_its_end_where_its_newest_checkpoint_is(storage: str) -> None:
    say = partial(run_storage.outcome, storage, "default")
    assert say(well=True) == "the job succeeded; no checkpoint was saved"
    trained(storage, 20)
    trained(storage, 40)
    saved = f"the newest checkpoint is step 40 in {provenance.shown(storage)}"
    assert say(well=True) == f"the job succeeded; {saved}"
    assert say(well=False) == saved, "what failed was told before"


def test_a_run_says_whose_state_it_goes_on_from(storage: str) -> None:
    run(storage, "a.py", "--steps", "40", code=1)
    trained(storage, 40)
    same = run(storage, "a.py", "--steps", "40")
    assert len(same) == 1
    assert same[0].startswith("resuming from step 40 in") and "saved" in same[0]
    assert "by a.py --steps 40; begin afresh with --fresh before the script" in same[0]
    assert "has succeeded" in run(storage, "a.py", "--steps", "40")[1]
    assert "other arguments: --steps 40" in run(storage, "a.py", "--steps", "50")[1]
    assert "another script, a.py" in run(storage, "b.py", code=1)[1]
    again = run(storage, "c.py")
    assert "by a.py --steps 40" in again[0], "the others have saved nothing"


def test_fresh_moves_a_folder_aside(tmp_path: Path) -> None:
    folder = tmp_path / "default"
    for number in (1, 2):
        trained(folder, 40)
        said = run(folder, "--fresh", "a.py")
        assert len(said) == 1 and f"default.{number}" in said[0]
        assert not (folder / "LATEST").exists()
        assert (tmp_path / f"default.{number}" / "LATEST").exists()
    assert run(folder, "--fresh", "a.py") == [], "there was nothing to be kept"


def test_fresh_leaves_what_others_see_too_where_it_is(storage: str) -> None:
    others = OtherNodes(MemoryStore(steady), "default", ("a:1",))
    trained(storage, 40)
    before = open_storage(storage).keys("1/")
    said = run(storage, "--fresh", "a.py", others=others)
    assert said[0].startswith("beginning afresh: step 40 and earlier ones stay in")
    assert run(storage, "a.py", others=others) == []
    for step in (5, 6, 7, 8):
        trained(storage, step)
    assert "from step 8 in" in run(storage, "a.py", others=others)[0]
    assert open_storage(storage).keys("1/") == before


def test_fresh_takes_nothing_from_a_run_that_lives(storage: str) -> None:
    with claimed(parse(["a.py"], {}), storage, others=None, say=print):
        trained(storage, 7)
        with pytest.raises(UsageError, match="another run"):
            run(storage, "--fresh", "b.py")
        assert Commits(open_storage(storage), "default").latest() == Commit(1, 7)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/../../x", "/x", "a\0b", ".", "a//b", "a/"])
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--rdzv-id"):
        run_storage.storage_url(parse([f"--rdzv-id={name}", "a.py"], {}))


def test_no_secret_is_kept() -> None:
    args = ["--token", "x1", "--api-key=x2", "AWS_SECRET=x3", "--hf-token", "--steps", "4"]
    kept = provenance.without_secrets(args)
    assert kept == ["--token", "***", "--api-key=***", "AWS_SECRET=***", *args[4:]]


def made(folder: Path, script: str, step: int = 0) -> None:
    """What a run of the script has left there; with a step, it has saved that."""
    run(folder, script)
    if step:
        trained(folder, step)


def default_of(*args: str) -> str:
    return Path(run_storage.storage_url(parse(args, {}))).name


def test_scripts_in_one_folder_have_storages_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scripts = ["train.py", "./eval.py", "train.sh", "a/train.py", "b/train.py", "../x/train.py"]
    scripts += ["-m pkg.train", "train_a.py", "train-a.py", "Train.py", "train@3.py", "default.py"]
    found = []
    for turn in (1, 2):
        names = []
        for script in scripts:
            names.append(default_of(*script.split()))
            made(tmp_path / "runs" / names[-1], script.split()[-1], turn)
        found.append(names)
    assert len({*found[0]}) == len(scripts) and found[0] == found[1]
    assert found[0][:5] == ["train", "eval", "train.sh", "a-train.py", "b-train.py"]
    assert default_of(str(tmp_path / "train.py")) == "train", "however it is written"
    assert default_of("--rdzv-id", "job7", "train.py") == "job7"


@pytest.mark.parametrize("step", [0, 5])
def test_what_an_older_version_has_begun_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "runs/default", "train.py", step)
    assert default_of("./train.py") == "default"
    assert default_of("other.py") == "other"
    run(tmp_path / "runs/default", "other.py")  # the older version did that, and saved nothing
    assert default_of("train.py") == ("default" if step else "train")
    assert default_of("third.py") == "third"


def test_an_imported_checkpoint_is_anybodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "runs/default", 5)
    assert default_of("train.py") == "default"
    made(tmp_path / "runs/default", "train.py")
    trained(tmp_path / "runs/default", 6)
    assert default_of("other.py") == "other"


def test_a_storage_that_was_named_is_not_continued_by_another_script(storage: str) -> None:
    named = ("--storage", storage)
    run(storage, *named, "a.py", "--steps", "9")
    trained(storage, 20)
    with pytest.raises(UsageError) as refused:
        run(storage, *named, "b.py")
    told = str(refused.value)
    assert "another run, a.py --steps 9: " in told and "\n" not in told
    assert all(told.count(flag) == 1 for flag in ("--fresh", "--take-over"))
    assert "name another --storage" in told
    assert run(storage, *named, "/elsewhere/a.py")[0].startswith("resuming from step 20")
    assert run(storage, *named, "--take-over", "b.py")[0].startswith("resuming from step 20")
    assert "afresh" in run(storage, *named, "--fresh", "b.py")[0]
    assert run(storage, *named, "b.py") == []


def test_a_script_goes_on_with_an_agent_and_without_one(tmp_path: Path) -> None:
    for owner, other in (("standalone", "default"), ("default", "standalone")):
        url = str(tmp_path / owner)
        Commits(open_storage(url), owner).claim()
        Commits(open_storage(url), other).check_owner()
        with pytest.raises(StorageOwned):
            Commits(open_storage(url), "job7").check_owner()
