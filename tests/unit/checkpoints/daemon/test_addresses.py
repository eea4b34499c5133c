"""Addresses of IPv4 and IPv6 as text, and sockets that are bound to them."""

import socket
from pathlib import Path

import pytest
from spotelastic_checkpoints import addresses
from support.processes.patience import PATIENT

from spotelastic.errors import UsageError
from spotelastic.linux import interface_of
from spotelastic.store.endpoints import endpoints_of
from spotelastic.store.etcd_server.process import MemberConfig

needs_ipv6 = pytest.mark.skipif(not addresses.is_free("::1", 0), reason="there is no IPv6 here")


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("node1", 7, "node1:7"),
        ("10.0.0.1", 7, "10.0.0.1:7"),
        ("::1", 7, "[::1]:7"),
        ("fe80::1%eth0", 7, "[fe80::1%eth0]:7"),
    ],
)
def test_host_and_port_are_one_text_and_two_again(host: str, port: int, text: str) -> None:
    assert addresses.join(host, port) == text
    assert addresses.split(text) == (host, port)
    assert addresses.of_url(addresses.url("http", text)) == text


def test_an_interface_is_escaped_in_urls() -> None:
    assert addresses.url("https", "[fe80::1%eth0]:7") == "https://[fe80::1%25eth0]:7"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[::1]", ("[::1]:29400",)),
        ("[::1]:,a", ("[::1]:29400", "a:29400")),
        ("http://[fd00::2]:7,http://b:8", ("[fd00::2]:7", "b:8")),
        ("http://[fe80::1%25eth0]:7", ("[fe80::1%eth0]:7",)),
        ("[fe80::1%eth0]:7", ("[fe80::1%eth0]:7",)),
    ],
)
def test_endpoints(text: str, found: tuple[str, ...]) -> None:
    assert endpoints_of(text, 29400) == found


@pytest.mark.parametrize(
    "text", ["::1", "fe80::1:29400", "[host]:1", "[::1", "::1]:1", "[::1]:x", ":7"]
)
def test_what_is_no_endpoint_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--rdzv-endpoint .*: give HOST:PORT"):
        endpoints_of(text, 29400)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True), ("127.0.1.1", True), ("::1", True),
        ("node1", False), ("10.0.0.1", False), ("fe80::1%lo", False),
    ],
)  # fmt: skip
def test_what_is_another_machine_on_each_machine(host: str, loopback: bool) -> None:
    assert addresses.is_loopback(host) == loopback


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_a_server_is_found_where_it_says(address: str) -> None:
    with addresses.listen(address, 0, 1) as server:
        host, port = addresses.split(addresses.own(server))
        assert host == address and not addresses.is_free(address, port)
        with socket.create_connection((host, port), PATIENT):
            pass
        assert addresses.towards(address, port) == address
    assert addresses.is_free(address, port)
    assert interface_of(address) == "lo"


@needs_ipv6
def test_an_address_of_one_interface_keeps_its_name() -> None:
    found = [line.split() for line in open("/proc/net/if_inet6")]  # noqa: PTH123, SIM115
    local = [(raw, name) for raw, *_, name in found if raw.startswith("fe80")]
    if not local:
        pytest.skip("no interface has a link-local address")
    raw, name = local[0]
    address = f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw))}%{name}"
    assert addresses.resolve(address) == [address] and addresses.is_link_local(address)
    assert interface_of(address) == name
    with addresses.listen(address, 0, 1) as server:
        assert addresses.split(addresses.own(server))[0] == address


def test_etcd_is_told_of_ipv6_as_urls_have_it() -> None:
    at = "[fe80::1%eth0]"
    config = MemberConfig("m", Path("/data"), f"{at}:7", f"{at}:8", listen="::")
    told = config.arguments((3, 5, 9))
    url = "http://[fe80::1%25eth0]"
    for flag in (
        "--listen-client-urls=http://[::]:7",
        "--listen-peer-urls=http://[::]:8",
        f"--advertise-client-urls={url}:7",
        f"--initial-advertise-peer-urls={url}:8",
        f"--initial-cluster=m={url}:8",
    ):
        assert flag in told
