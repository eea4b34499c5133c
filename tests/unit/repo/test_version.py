"""The version stands in one place, and the changelog has a section for it."""

from importlib.metadata import version

import pytest
from support.repo import release

import spotelastic
from spotelastic.aws.artifacts import wheel
from spotelastic.cli import main
from spotelastic.errors import EnvironmentFailure


def test_what_is_installed_has_the_version_of_the_code() -> None:
    assert version("spotelastic") == spotelastic.__version__


def test_the_command_tells_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["spotelastic", "--version"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, capsys.readouterr().out) == (
        0,
        f"spotelastic {spotelastic.__version__}\n",
    )


def test_the_release_of_a_tag_has_its_notes(capsys: pytest.CaptureFixture[str]) -> None:
    release.main(f"v{spotelastic.__version__}")
    told = capsys.readouterr().out
    assert "## [" not in told
    assert len(told.splitlines()) > 3
    with pytest.raises(SystemExit, match=r"the tag v0\.0\.9 is not the version"):
        release.main("v0.0.9")


def test_notes_are_those_of_one_version() -> None:
    changelog = "# C\n\n## [Unreleased]\n\n## [2.0] - 2026-01-02\nb\n\n## [1.0] - 2026-01-01\na\n"
    assert release.notes(changelog, "2.0") == "b"
    assert release.notes(changelog, "1.0") == "a"
    assert release.notes(changelog, "1") is None


def test_an_installation_older_than_its_code_is_not_shipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel, "__version__", "999.0")
    wheel.build.cache_clear()
    with pytest.raises(EnvironmentFailure, match=r"is 999\.0: install it again with pip"):
        wheel.build()
    wheel.build.cache_clear()
