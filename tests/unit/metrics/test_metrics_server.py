"""The server of metrics: real sockets, and people who misbehave at them."""

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
from support.processes.patience import PATIENT, eventually

from spotelastic.metrics.catalogue import Sample
from spotelastic.metrics.node import STEP
from spotelastic.metrics.scrape_server import MetricsServer

Clusters = list[tuple[str, list[Sample]]]


def samples() -> Clusters:
    return [("demo", [STEP.sample(41)])]


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with MetricsServer("127.0.0.1", 0, samples) as server:
        yield server


def get(server: MetricsServer, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port(PATIENT), timeout=PATIENT)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port(PATIENT)), timeout=PATIENT)


def test_a_scrape_gets_the_samples_and_those_of_the_process(server: MetricsServer) -> None:
    status, page = get(server)
    assert status == 200
    assert 'spotelastic_node_step{cluster="demo"} 41.0' in page
    assert "process_cpu_seconds_total " in page


def test_each_scrape_reads_what_is_so_then() -> None:
    step = [1]
    with MetricsServer("127.0.0.1", 0, lambda: [("demo", [STEP.sample(step[0])])]) as server:
        assert 'step{cluster="demo"} 1.0' in get(server)[1]
        step[0] = 2
        assert 'step{cluster="demo"} 2.0' in get(server)[1]


def test_two_servers_of_one_process_know_nothing_of_each_other(server: MetricsServer) -> None:
    with MetricsServer("127.0.0.1", 0, lambda: [("other", [STEP.sample(7)])]) as other:
        assert "demo" in get(server)[1] and "demo" not in get(other)[1]
        assert "other" not in get(server)[1] and "other" in get(other)[1]


def test_nothing_listens_for_everybody() -> None:
    for address in ("0.0.0.0", "::"):
        with pytest.raises(ValueError, match="everybody"):
            MetricsServer(address, 0, samples)


def test_samples_that_cannot_be_read_fail_one_scrape_alone() -> None:
    broken = [True]

    def read() -> Clusters:
        if broken[0]:
            raise RuntimeError("nothing is known")
        return samples()

    with MetricsServer("127.0.0.1", 0, read) as server:
        assert get(server)[0] == 500
        broken[0] = False
        assert get(server)[0] == 200


def test_a_port_that_is_taken_is_told_once_and_tried_again() -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = MetricsServer("127.0.0.1", port, samples, retry=0.01, say=told.append)
        eventually(lambda: told)
        assert server.port(0.05) == 0
    with server:
        assert get(server)[0] == 200
    assert len(told) == 1 and f"no metrics on 127.0.0.1:{port} yet" in told[0]


def test_an_address_of_another_machine_ends_nothing() -> None:
    told: list[str] = []
    with MetricsServer("192.0.2.1", 9464, samples, say=told.append):
        eventually(lambda: told)


def test_whoever_says_nothing_is_cut_off_and_others_are_served_meanwhile() -> None:
    with (
        MetricsServer("127.0.0.1", 0, samples, within=0.2) as server,
        connect(server) as silent,
    ):
        assert get(server)[0] == 200
        assert silent.recv(1) == b""


def test_whoever_sends_a_byte_at_a_time_is_cut_off() -> None:
    with MetricsServer("127.0.0.1", 0, samples, within=0.5) as server, connect(server) as slow:

        def is_cut_off() -> bool:
            try:
                return slow.send(b"G") == 0
            except OSError:
                return True

        eventually(is_cut_off, "an end of the slow connection")


def test_more_connections_than_are_served_are_closed_at_once() -> None:
    with MetricsServer("127.0.0.1", 0, samples, at_once=1) as server:
        with connect(server) as first:
            first.sendall(b"GET /metrics HTTP/1.0\r\n")  # and nothing more
            with connect(server) as second:
                assert second.recv(1) == b""
            first.sendall(b"\r\n")
            assert first.recv(12) == b"HTTP/1.0 200"
        eventually(lambda: scraped(server), "a free connection")


def scraped(server: MetricsServer) -> bool:
    try:
        return get(server)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_hanging_scrape_does_not_keep_the_server_from_closing() -> None:
    asked, ends = threading.Event(), threading.Event()

    def read() -> Clusters:
        asked.set()
        ends.wait(PATIENT)
        return samples()

    server = MetricsServer("127.0.0.1", 0, read)
    with connect(server) as hanging:
        hanging.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asked.wait(PATIENT)
        server.close()
        ends.set()
        while hanging.recv(4096):
            pass
