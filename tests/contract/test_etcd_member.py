"""A real etcd process: found, started, watched over and ended."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.patience import PATIENT
from support.processes.ports import HOST, held_ports
from support.store.etcd_members import wait_until

from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server import process
from spotelastic.store.etcd_server.process import (
    EtcdMember,
    MemberConfig,
    find_binary,
    find_leader,
    leads,
)


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> Path:
    script = folder / "etcd"
    script.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return script


def test_an_etcd_on_path_is_used_when_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = put_on_path(tmp_path, monkeypatch, "3.5.16")
    found = find_binary()
    assert (found.path, found.version) == (script, (3, 5, 16))


def test_an_etcd_on_path_that_can_lose_data_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = put_on_path(tmp_path, monkeypatch, "3.5.2")
    assert find_binary().path != script


def test_a_missing_binary_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFailure, match="install etcd") as failure:
        find_binary()
    assert "\n" not in str(failure.value)


def test_a_member_says_who_leads(etcd_member: EtcdMember) -> None:
    assert leads(etcd_member.endpoint, timeout=PATIENT)
    assert find_leader([etcd_member.endpoint], timeout=PATIENT) == etcd_member.endpoint
    assert Path(f"/proc/{etcd_member.pid}/comm").read_text().strip() == "etcd"


def test_nobody_home_is_unavailable() -> None:
    with held_ports(1) as (port,):
        with pytest.raises(Unavailable, match=str(port)):
            leads(f"{HOST}:{port}")
        assert not find_leader([f"{HOST}:{port}"])


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken, held_ports(1) as (peer,):
        port = taken.getsockname()[1]
        config = MemberConfig("a", tmp_path / "data", f"{HOST}:{port}", f"{HOST}:{peer}")
        with EtcdMember(config, log=tmp_path / "log") as member:
            member.start()
            with pytest.raises(EnvironmentFailure, match=rf"{port}.*address already in use"):
                member.await_service(PATIENT)


def test_a_member_without_its_cluster_is_unavailable_in_time(tmp_path: Path) -> None:
    with held_ports(3) as (client, peer, other):
        cluster = {"a": f"{HOST}:{peer}", "b": f"{HOST}:{other}"}
        config = MemberConfig("a", tmp_path / "data", f"{HOST}:{client}", cluster["a"], cluster)
        with EtcdMember(config, log=tmp_path / "log") as member:
            member.start()
            with pytest.raises(Unavailable, match="does not serve after 1 s"):
                member.await_service(1)


def test_data_survives_a_restart_and_a_frozen_member_can_be_stopped(tmp_path: Path) -> None:
    with (
        process.standalone(tmp_path) as member,
        contextlib.closing(EtcdStore([member.endpoint], timeout=10)) as store,
    ):
        made = store.put("a", b"1")
        os.kill(member.pid, signal.SIGSTOP)
        member.stop()
        assert not member.running
        member.start()
        member.await_service(PATIENT)
        value = store.get("a")
        assert value is not None
        assert (value.data, value.modified) == (b"1", made)


def test_a_member_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys\n"
        "from spotelastic.store.etcd_server.process import standalone\n"
        "print(standalone(pathlib.Path(sys.argv[1])).pid, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not alive(pid), "etcd ended")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
