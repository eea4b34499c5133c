"""`--mount`: what it names, and how a node mounts it."""

import os
from pathlib import Path

import pytest

from spotelastic.aws.node import mounts
from spotelastic.aws.node.mounts import ensure, read, read_all
from spotelastic.errors import EnvironmentFailure, UsageError

LUSTRE = "fs-0123.fsx.us-east-1.amazonaws.com@tcp:/abcdef"


@pytest.mark.parametrize(
    ("text", "region", "source", "kind"),
    [
        ("fs-0123abcd:/data", "us-east-1", "fs-0123abcd.efs.us-east-1.amazonaws.com:/", "nfs4"),
        (
            "fs-0123abcd:/data",
            "cn-north-1",
            "fs-0123abcd.efs.cn-north-1.amazonaws.com.cn:/",
            "nfs4",
        ),
        (
            "fs-0123abcd:/sub:/data",
            "us-east-1",
            "fs-0123abcd.efs.us-east-1.amazonaws.com:/sub",
            "nfs4",
        ),
        (f"{LUSTRE}:/data", "us-east-1", LUSTRE, "lustre"),
        (
            "fs-1.fsx.eu-west-1.amazonaws.com:/fsx:/data",
            "eu-west-1",
            "fs-1.fsx.eu-west-1.amazonaws.com:/fsx",
            "nfs4",
        ),
    ],
)
def test_each_kind_is_known_by_its_name(text: str, region: str, source: str, kind: str) -> None:
    found = read(text, region)
    assert (found.source, found.kind, found.folder) == (source, kind, "/data")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/data",
        "fs-0123abcd",
        "host:/data",
        "host:/a b:/data",
        "fs-0123abcd:/",
        "x:/y:/etc/z",
        "x:/y:/usr",
    ],
)
def test_what_is_none_of_them_or_the_systems_own_folder_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--mount"):
        read(text)
    with pytest.raises(UsageError, match="both be /data"):
        read_all(["fs-0123abcd:/data", "host:/a:/data"])


def test_a_node_installs_what_is_missing_and_mounts_it_and_says_why_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs are played: to mount takes root, and a file system."""
    told, folder = tmp_path / "told", tmp_path / "data"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, more in (("mount", 'exit $(cat "$0".code)'), ("dnf", f"touch {programs}/mount.nfs4")):
        (programs / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >> {told}\necho no way >&2\n{more}\n'
        )
        (programs / name).chmod(0o755)
    (programs / "mount.code").write_text("0")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert ensure([f"fs-0123abcd:{folder}"], "us-east-1") == (folder,)
    assert folder.is_dir()
    first, second = told.read_text().splitlines()
    assert first == "dnf -y -q install nfs-utils"
    assert (
        second
        == f"mount -t nfs4 -o {mounts.NFS} fs-0123abcd.efs.us-east-1.amazonaws.com:/ {folder}"
    )
    (programs / "mount.code").write_text("32")
    with pytest.raises(EnvironmentFailure, match=r"amazonaws\.com:/: no way; look whether"):
        ensure([f"fs-0123abcd:{folder}"], "us-east-1")
    monkeypatch.setattr(Path, "is_mount", lambda _: True)
    assert ensure([f"fs-0123abcd:{folder}"], "us-east-1") == (folder,)
