"""The images: no engine builds them here, but what they are built from is checked."""

import re
import tomllib
from pathlib import Path

from spotelastic.aws.artifacts import boot_artifacts
from spotelastic.store.etcd_server.process import MINIMUM

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / "Dockerfile").read_text()


def copied() -> list[str]:
    """What is taken out of the repository, not out of another image."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def test_all_that_is_copied_is_there_and_not_ignored() -> None:
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(copied()) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied())


def test_the_wheel_needs_nothing_that_is_not_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    its = [*wheel["packages"], *wheel["force-include"], project["project"]["readme"]]
    assert {name.partition("/")[0] for name in its} <= set(copied())
    assert set(project["project"]["license-files"]) <= set(copied())


def test_the_python_of_the_images_is_one_that_the_package_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (base,) = re.findall(r"^ARG BASE=python:(\d+\.\d+)-slim$", TEXT, re.MULTILINE)
    least = project["requires-python"].removeprefix(">=")
    assert tuple(map(int, base.split("."))) >= tuple(map(int, least.split(".")))


def test_images_and_nodes_have_the_same_etcd() -> None:
    assert f"ARG ETCD={boot_artifacts.ETCD.version}\n" in TEXT
    assert f"--checksum=sha256:{boot_artifacts.ETCD.sha256} " in TEXT
    assert tuple(map(int, boot_artifacts.ETCD.version.split("."))) >= MINIMUM


def test_the_user_of_a_worker_is_a_number() -> None:
    assert re.findall(r"^USER (.+)$", TEXT, re.MULTILINE) == ["10001"]


def test_images_and_this_machine_have_the_same_torch() -> None:
    (torch,) = re.findall(r"^ARG TORCH=(\S+)$", TEXT, re.MULTILINE)
    assert f"TORCH ?= {torch}\n" in (ROOT / "Makefile").read_text()
