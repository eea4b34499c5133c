"""A name that gets another address, as that of a pod does, is found there by who was connected."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.kubernetes.pod_names import Names, why_not
from support.processes.patience import PATIENT
from support.processes.ports import free_pair

from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig

FIRST, SECOND = "127.0.7.1", "127.0.7.2"
WITHIN = 15.0
"""Seconds for a write: half of the time for which gRPC by itself stays with an address."""
CLIENT = f"""
import sys
from spotelastic.store.etcd import EtcdStore
store = EtcdStore([sys.argv[1]], timeout={WITHIN})
for line in sys.stdin:
    store.put(line.strip(), b"")
    print("written", flush=True)
"""


def member(address: str, port: int, folder: Path) -> EtcdMember:
    client, peer = f"{address}:{port}", f"{address}:{port + 1}"
    return EtcdMember(
        MemberConfig("a", folder / "data", client, peer, fsync=False), log=folder / "log"
    )


def test_a_client_follows_a_name_to_its_new_address(tmp_path: Path) -> None:
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    names, port = Names(tmp_path / "hosts"), free_pair([FIRST, SECOND])
    names.set("train-0.train", FIRST)
    command = [*names.inside("client"), sys.executable, "-c", CLIENT, f"train-0.train:{port}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as client:
        assert client.stdin and client.stdout
        for address in (FIRST, SECOND):
            names.set("train-0.train", address)
            with member(address, port, tmp_path / address) as etcd:
                etcd.start()
                etcd.await_service(PATIENT)
                print(f"/{address}", file=client.stdin, flush=True)
                assert client.stdout.readline() == "written\n", client.stdout.read()
        client.stdin.close()
