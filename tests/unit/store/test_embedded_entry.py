"""How a member of a job's own etcd comes in, and what its etcd is told, by version."""

from pathlib import Path

import pytest

from spotelastic.store.etcd_server.embedded import Entry, entry
from spotelastic.store.etcd_server.process import MemberConfig, Version
from spotelastic.store.etcd_server.roster import ListedMember, Roster
from spotelastic.store.tls import TlsFiles

ME, OTHER = ListedMember(1, "a", "a:2", served=True), ListedMember(2, "b", "b:2", served=True)
NEW = ListedMember(3, "a:2", "a:2", served=False)


def seen(*members: ListedMember, led: bool = True) -> Roster:
    return Roster("b:1", led, members)


@pytest.mark.parametrize(
    ("others", "how"),
    [
        (None, "found"),
        (seen(NEW, OTHER), "join"),
        (seen(NEW, OTHER, led=False), "join"),
        (seen(ME, OTHER), "replace"),
        (seen(ME, OTHER, led=False), "wait"),
        (seen(OTHER), "add"),
        (seen(OTHER, led=False), "wait"),
    ],
)
def test_a_member_without_data_never_goes_on_under_an_identity_that_has_served(
    others: Roster | None, how: Entry
) -> None:
    assert entry("a:2", others) == how


def test_a_member_waits_while_the_others_cannot_be_found_and_may_serve() -> None:
    assert entry("a:2", None, findable=False) == "wait"
    assert entry("a:2", seen(ME, OTHER), findable=False) == "replace"


def arguments(version: Version, tls: TlsFiles | None = None, listen: str = "") -> list[str]:
    config = MemberConfig("a", Path("/data"), "h:1", "h:2", tls=tls, listen=listen)
    return config.arguments(version)


@pytest.mark.parametrize(
    ("version", "checks"),
    [
        (
            (3, 5, 1),
            [
                "--experimental-initial-corrupt-check=true",
                "--experimental-corrupt-check-time=1m",
            ],
        ),
        ((3, 5, 6), ["--experimental-initial-corrupt-check=true"]),
        ((3, 5, 21), ["--experimental-initial-corrupt-check=true"]),
        ((3, 6, 0), ["--feature-gates=InitialCorruptCheck=true"]),
    ],
)
def test_an_etcd_that_may_diverge_compares_its_members_all_the_time(
    version: Version, checks: list[str]
) -> None:
    assert [each for each in arguments(version) if "orrupt" in each] == checks


def test_a_member_with_certificates_asks_clients_and_peers_for_theirs() -> None:
    tls = TlsFiles(Path("/ca"), Path("/cert"), Path("/key"))
    told = arguments((3, 5, 6), tls)
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(told)
    assert "--listen-client-urls=https://h:1" in told and "--initial-cluster=a=https://h:2" in told
    assert not [each for each in arguments((3, 5, 6)) if "cert" in each or "https" in each]


def test_a_member_may_listen_elsewhere_than_it_is_reached() -> None:
    told = arguments((3, 5, 6), listen="0.0.0.0")
    assert "--listen-peer-urls=http://0.0.0.0:2" in told
    assert "--initial-advertise-peer-urls=http://h:2" in told
