"""A run on one machine: other users of the machine are not let in, and its own nodes are."""

import contextlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes.patience import PATIENT

from spotelastic.launcher import etcd_bootstrap, run_secrets
from spotelastic.launcher.rendezvous_config import RendezvousConfig
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import serves
from spotelastic.store.tls import TlsFiles, make_files

HERE = ("127.0.0.1:29500",)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPOTELASTIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_etcd_of_one_node_asks_for_its_certificate(tmp_path: Path) -> None:
    said = list[str]()
    alone = RendezvousConfig("alone")
    with etcd_bootstrap.meet(alone, tmp_path / "etcd", said.append) as rendezvous:
        (endpoint,) = rendezvous.endpoints
        assert rendezvous.tls is not None
        with contextlib.closing(
            EtcdStore(rendezvous.endpoints, timeout=PATIENT, tls=rendezvous.tls)
        ) as store:
            store.put("/x", b"1")
            assert store.get("/x").data == b"1"  # type: ignore[union-attr]
        assert not serves(endpoint)
        assert not serves(endpoint, TlsFiles(rendezvous.tls.cacert))
        assert not serves(endpoint, make_files(tmp_path / "of another run"))
        assert len(rendezvous.token) == 64
    assert not said


def test_nodes_on_one_machine_share_secrets_that_nobody_else_reads(home: Path) -> None:
    asked = RendezvousConfig("either", HERE)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(run_secrets.shared_on, [asked] * 24))
    assert len(found) == 1
    (old,) = (home / "runs").iterdir()
    other = RendezvousConfig("either", HERE, run="another")
    assert run_secrets.shared_on(other) not in found
    files = list(home.rglob("*"))
    assert len(files) == 1 + 2 * 5  # the folder of runs, and for each its folder with four files
    assert not [each for each in (home, *files) if stat.S_IMODE(each.stat().st_mode) & 0o077]
    os.utime(old, (0, 0))
    run_secrets.shared_on(RendezvousConfig("either", HERE, run="a third"))
    assert not old.exists()


@pytest.mark.parametrize(
    ("asked", "is_told"),
    [
        (RendezvousConfig("host", ("10.0.0.7:29500",)), True),
        (RendezvousConfig("client", ("10.0.0.7:2379",)), True),
        (RendezvousConfig("client", ("127.0.0.1:2379",)), False),
        (RendezvousConfig("host", ("10.0.0.7:29500",), plain=True), False),
        (RendezvousConfig("host", ("10.0.0.7:29500",), tls=TlsFiles()), False),
    ],
)
def test_nodes_on_several_machines_are_told_that_they_are_open(
    asked: RendezvousConfig, is_told: bool
) -> None:
    own = etcd_bootstrap.secrets_of(asked)
    assert (own.tls, own.token, bool(own.warning)) == (asked.tls, "", is_told)


def test_a_home_that_cannot_be_written_is_told(home: Path) -> None:
    home.write_text("")
    own = etcd_bootstrap.secrets_of(RendezvousConfig("either", HERE))
    assert own.tls is None
    assert "anyone who can reach the ports" in own.warning
