"""Which environment a folder asks for, and when it is another one."""

from pathlib import Path

import pytest

from spotelastic.aws.artifacts.requirements import find
from spotelastic.errors import UsageError


def key(folder: Path, code: str = "code", asked: str | None = None) -> str:
    found = find(folder, asked, code)
    assert found is not None
    return found.key


def test_the_file_that_says_most_counts(tmp_path: Path) -> None:
    assert find(tmp_path, None, "code") is None
    for name, kind in (
        ("environment.yml", "conda"),
        ("requirements.txt", "pip"),
        ("uv.lock", "uv"),
    ):
        (tmp_path / name).write_text("")
        (tmp_path / "pyproject.toml").write_text("")
        found = find(tmp_path, None, "code")
        assert found is not None
        assert (found.kind, found.file) == (kind, name)
    assert find(tmp_path, "none", "code") is None
    named = find(tmp_path, "requirements.txt", "code")
    assert named is not None and named.kind == "pip"


def test_another_list_is_another_environment_and_other_code_is_not(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("einops\n")
    first = key(tmp_path)
    assert key(tmp_path, code="other") == first
    (tmp_path / "requirements.txt").write_text("einops==0.8\n")
    assert key(tmp_path) != first


def test_lists_that_a_list_includes_count_too(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r more/base.txt\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/base.txt").write_text("-c ../limits.txt\neinops\n")
    (tmp_path / "limits.txt").write_text("einops<1\n-r requirements.txt\n")
    first = key(tmp_path)
    (tmp_path / "limits.txt").write_text("einops<2\n-r requirements.txt\n")
    assert key(tmp_path) != first


@pytest.mark.parametrize("line", ["-e .", "./package", ".", "mine @ file:./package"])
def test_a_folder_that_is_installed_makes_the_code_count(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"{line}\n")
    assert key(tmp_path, code="one") != key(tmp_path, code="other")


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ('{ editable = "packages/foo" }', True),
        ('{ directory = "foo" }', True),
        ('{ editable = "." }', False),
        ('{ virtual = "." }', False),
        ('{ registry = "https://pypi.org/simple" }', False),
    ],
)
def test_a_folder_that_uv_installs_makes_the_code_count(
    tmp_path: Path, source: str, counts: bool
) -> None:
    """The environment of other code would lead to that code's folder."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "uv.lock").write_text(f'[[package]]\nname = "foo"\nsource = {source}\n')
    assert (key(tmp_path, code="one") != key(tmp_path, code="other")) == counts


def test_a_wheel_that_is_installed_counts_by_its_contents(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("./a.whl\n")
    (tmp_path / "a.whl").write_text("1")
    first = key(tmp_path)
    assert key(tmp_path, code="other") == first
    (tmp_path / "a.whl").write_text("2")
    assert key(tmp_path) != first


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("absent.txt", "there is no absent.txt"),
        ("setup.py", "--environment setup.py: expected uv.lock"),
        ("uv.lock", "there is no uv.lock"),
    ],
)
def test_a_file_that_cannot_be_is_named(tmp_path: Path, asked: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(tmp_path, asked, "code")
