"""A container image is pulled before its container starts. `docker` is a script of the test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from spotelastic_checkpoints.backoff import Backoff

from spotelastic.bootstrap.image_pull import TRIES, pull, registry
from spotelastic.errors import EnvironmentFailure, Unavailable

AT_ONCE = Backoff(0.0, 0.0)
DOCKER = """#!/bin/sh
echo "$@" >> {folder}/calls
case $1 in
  image) exit $(test -e {folder}/here; echo $?) ;;
  login) cat > {folder}/password; exit 0 ;;
esac
{pull}
"""
GOES_WELL = "echo '2.9: Pulling from team/torch'; echo 'a: Pull complete'"
FAILS = "echo 'Error response from daemon: manifest unknown' >&2; exit 1"
Docker = Callable[[str], Path]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """A docker with this way to pull; the folder has its calls."""

    def made(way: str) -> Path:
        program = tmp_path / "docker"
        program.write_text(DOCKER.format(folder=tmp_path, pull=way))
        program.chmod(0o755)
        return tmp_path

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return made


def calls(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "calls").read_text().splitlines()]


def test_a_pull_is_told(docker: Docker) -> None:
    told = list[str]()
    docker(GOES_WELL)
    pull("team/torch:2.9", told.append, backoff=AT_ONCE)
    assert told == ["pulling the image team/torch:2.9"]


def test_an_image_that_is_there_is_not_asked_for_again(docker: Docker) -> None:
    folder = docker(FAILS)
    (folder / "here").touch()
    pull("team/torch:2.9", pytest.fail, backoff=AT_ONCE)
    assert calls(folder) == ["image"]


def test_a_pull_that_fails_three_times_succeeds_the_fourth_time(docker: Docker) -> None:
    folder = docker("")
    docker(f"[ $(grep -c ^pull {folder}/calls) -gt 3 ] || {{ {FAILS}; }}")
    pull("team/torch:2.9", list[str]().append, backoff=AT_ONCE)
    assert calls(folder) == ["image", "pull", "pull", "pull", "pull"]


def test_an_image_that_is_nowhere_ends_in_one_line(docker: Docker) -> None:
    folder = docker(FAILS)
    with pytest.raises(EnvironmentFailure) as failed:
        pull("team/torch:2.9", list[str]().append, backoff=AT_ONCE)
    assert str(failed.value) == (
        "--image team/torch:2.9 cannot be pulled: Error response from daemon: manifest unknown"
    )
    assert calls(folder).count("pull") == TRIES


def test_a_pull_that_hangs_is_ended(docker: Docker) -> None:
    docker("exec sleep 1000")
    with pytest.raises(EnvironmentFailure, match="be pulled: docker pull did not end within 0 s"):
        pull("team/torch:2.9", list[str]().append, backoff=AT_ONCE, within=0.01)


ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


def test_an_image_in_ecr_is_pulled_with_a_password_of_the_role(docker: Docker) -> None:
    folder = docker(GOES_WELL)
    answers = [Unavailable("no credentials yet")]

    def password(region: str) -> str:
        if answers:
            raise answers.pop()
        return f"secret of {region}"

    pull(f"{ECR}/torch:2.9", list[str]().append, password, AT_ONCE)
    assert (folder / "password").read_text() == "secret of eu-west-1"
    login = f"login --username AWS --password-stdin {ECR}"
    assert (folder / "calls").read_text().splitlines()[1:] == [login, f"pull {ECR}/torch:2.9"]


@pytest.mark.parametrize(
    ("image", "region"),
    [
        (f"{ECR}/torch:2.9", "eu-west-1"),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/a/b@sha256:00", "cn-north-1"),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/a", "us-gov-west-1"),
        ("public.ecr.aws/team/torch:2.9", None),
        ("pytorch/pytorch", None),
        (f"{ECR}.example.org/torch", None),
        (f"mirror.example.org/{ECR}/torch", None),
    ],
)
def test_the_name_says_whether_an_image_is_in_a_registry_of_the_account(
    image: str, region: str | None
) -> None:
    found = registry(image)
    assert (found and found.region) == region
