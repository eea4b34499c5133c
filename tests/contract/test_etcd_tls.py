"""A real etcd member that serves TLS only, and clients with and without the right certificates."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes.patience import PATIENT
from support.processes.ports import HOST, held_ports
from support.store.certificates import certificates
from support.store.watch_sinks import Recorder

from spotelastic.errors import Unavailable, UsageError
from spotelastic.store.diagnose import diagnose, read
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig, leads
from spotelastic.store.members import MemberChannel
from spotelastic.store.session import Session
from spotelastic.store.tls import FILES, TlsFiles, tls_of


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    folder = tmp_path_factory.mktemp("tls")
    tls = certificates(folder / "tls")
    with held_ports(2) as (client, peer):
        at = (f"{HOST}:{client}", f"{HOST}:{peer}")
        config = MemberConfig("m", folder / "data", *at, fsync=False, tls=tls)
        with EtcdMember(config, log=folder / "log") as started:
            started.start()
            started.await_service(PATIENT)
            yield started


@pytest.fixture
def tls(member: EtcdMember) -> TlsFiles:
    assert member.config.tls is not None
    return member.config.tls


def test_calls_and_watches_are_encrypted(member: EtcdMember, tls: TlsFiles) -> None:
    with contextlib.closing(EtcdStore([member.endpoint], timeout=5.0, tls=tls)) as store:
        seen = Recorder()
        store.watch("/tls/", seen)
        seen.wait(lambda seen: seen.resets)
        store.put("/tls/a", b"1")
        seen.wait(lambda seen: seen.changes)
        assert seen.told == [("/tls/a", b"1")]
    assert leads(member.endpoint, timeout=PATIENT, tls=tls)


def test_a_client_goes_on_with_certificates_that_replaced_its_own(tmp_path: Path) -> None:
    """The session, the watch and the calls of one store: a worker is not restarted for them."""
    ours, theirs = certificates(tmp_path / "client"), tmp_path / "member"
    shutil.copytree(tmp_path / "client", theirs)
    tls = TlsFiles(theirs / "ca.pem", theirs / "cert.pem", theirs / "key.pem")
    lost, seen = threading.Event(), Recorder()
    with contextlib.ExitStack() as ends:
        client, peer = ends.enter_context(held_ports(2))
        at = (f"{HOST}:{client}", f"{HOST}:{peer}")
        config = MemberConfig("m", tmp_path / "data", *at, fsync=False, tls=tls)
        member = ends.enter_context(EtcdMember(config, log=tmp_path / "log"))
        member.start()
        member.await_service(PATIENT)
        store = EtcdStore([member.endpoint], timeout=20.0, tls=ours)
        ends.callback(store.close)
        session = Session(store, 60.0, lambda _: lost.set())
        ends.callback(session.close)
        store.watch("/tls/", seen)
        store.put("/tls/a", b"1", session.lease)
        seen.wait(lambda seen: "/tls/a" in seen.state())

        member.stop()
        certificates(theirs)  # of another authority, so that nothing old is of any use
        member.start()
        member.await_service(PATIENT)
        with pytest.raises(Unavailable, match="did not answer"):
            store.refresh(session.lease, timeout=1.0)

        shutil.copytree(theirs, tmp_path / "client", dirs_exist_ok=True)
        store.put("/tls/b", b"2", session.lease)
        seen.wait(lambda seen: seen.state().keys() == {"/tls/a", "/tls/b"})
        assert session.alive and not lost.is_set()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("left", [0, 40])
def test_certificates_that_are_just_being_written_are_left_alone(
    name: str, left: int, tmp_path: Path
) -> None:
    """gRPC ended the process where a file was empty."""
    ours = certificates(tmp_path)
    channel = MemberChannel("127.0.0.1:1", ours)
    file = getattr(ours, name)
    old = file.read_bytes()
    file.write_bytes(old[:left])
    assert channel.renewed() is channel
    with pytest.raises(OSError, match="not a whole PEM file"):
        MemberChannel("127.0.0.1:1", ours)
    file.write_bytes(old + old)
    assert channel.renewed() is not channel


def test_what_is_wrong_with_certificates_is_said(
    member: EtcdMember, tls: TlsFiles, tmp_path: Path
) -> None:
    stranger = certificates(tmp_path / "other")
    told = {
        "plain": diagnose(member.endpoint),
        "authority": diagnose(member.endpoint, stranger),
        "missing": diagnose(member.endpoint, TlsFiles(tls.cacert)),
        "refused": diagnose(member.endpoint, replace(stranger, cacert=tls.cacert)),
        "host": diagnose(member.endpoint.replace("127.0.0.1", "127.0.0.9"), tls),
        "right": diagnose(member.endpoint, tls),
    }
    assert "speaks TLS" in told["plain"].told
    assert f"cacert={stranger.cacert}" in told["authority"].told
    assert "does not accept this client's certificate" in told["missing"].told
    assert "does not accept this client's certificate" in told["refused"].told
    assert "connection refused" in told["host"].told
    assert told["right"].told.startswith("etcd 3.") and not told["right"].final
    assert {name for name, each in told.items() if not each.final} == {"host", "right"}


@pytest.mark.parametrize(
    ("said", "told", "final"),
    [
        (b"", "does not answer", False),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "an HTTP server answers there, not etcd", True),
        (b"SSH-2.0-OpenSSH\r\n", "a server answers there, not etcd", True),
        (b'HTTP/1.1 200 OK\r\n\r\n{"etcdserver":"2.3.8"}', "etcd 2.3.8 answers", True),
        (b'HTTP/1.1 200 OK\r\n\r\n{"etcdserver":"3.6.0"}', "has no leader", False),
        (b'HTTP/1.1 200 OK\r\n\r\n{"version":"7"}', "not etcd", True),
        (b'HTTP/1.1 200 OK\r\n\r\n["etcdserver"]', "not etcd", True),
    ],
)
def test_who_answers_shows_in_what_it_says(said: bytes, told: str, final: bool) -> None:
    found = read(said)
    assert told in found.told and found.final == final


def test_certificates_are_named_as_torch_names_them(tls: TlsFiles, tmp_path: Path) -> None:
    conf = {"cacert": str(tls.cacert), "cert": str(tls.cert), "key": str(tls.key)}
    assert tls_of(conf, wanted=True) == tls
    assert tls_of({"join_timeout": "5"}, wanted=False) is None
    with pytest.raises(UsageError, match=r"cert=.*: cert and key belong together"):
        tls_of({"cert": str(tls.cert)}, wanted=True)
    with pytest.raises(UsageError, match="add protocol=https"):
        tls_of(conf, wanted=False)
    other = certificates(tmp_path / "other")
    with pytest.raises(UsageError, match=rf"key={other.key}: key values mismatch"):
        tls_of({**conf, "key": str(other.key)}, wanted=True)
