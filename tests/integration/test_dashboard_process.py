"""`spotelastic dashboard` as a process, with the local cloud: from its address to Ctrl-C."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.clusters.local_cloud import running_cloud
from support.processes.patience import PATIENT
from support.processes.run_launcher import HEEDFUL


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with running_cloud(tmp_path / "home"):
        process = subprocess.Popen(
            [*HEEDFUL, sys.executable, "-m", "spotelastic", "dashboard", "--local"],
            env=os.environ | {"SPOTELASTIC_HOME": str(tmp_path / "home")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def test_it_shows_what_there_is_until_ctrl_c(dashboard: "subprocess.Popen[str]") -> None:
    assert dashboard.stdout is not None
    address = dashboard.stdout.readline().strip()
    assert urlsplit(address).hostname == "127.0.0.1"
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(address, timeout=PATIENT) as answer:
        root = answer.read().decode().partition('content="0;url=')[2].partition('"')[0]
    begin = address.partition("/open")[0]
    host = urlsplit(begin).netloc.encode()
    for odd, answered in (
        (b"\x16\x03\x01https\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nHost: %b\r\n\r\n" % host, b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: %b\r\nAuthorization: \xff\r\n\r\n" % host, b"403"),
    ):
        with socket.create_connection(("127.0.0.1", urlsplit(begin).port or 0), PATIENT) as other:
            other.sendall(odd)
            assert other.recv(12)[9:] == answered, "and nothing is printed about it"
    with browser.open(f"{begin}{root}", timeout=PATIENT) as answer:
        assert b"<h1>Clusters</h1>" in answer.read()
    with browser.open(f"{begin}{root}stream", timeout=PATIENT) as stream:
        told = json.loads(stream.readline().removeprefix(b"data: "))
        assert "There is no cluster, and none has ended" in told["sections"]["clusters"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{begin}{root}", timeout=PATIENT)
        dashboard.send_signal(signal.SIGINT)  # while a page is open
        assert dashboard.wait(PATIENT) == 128 + signal.SIGINT
    assert dashboard.stderr is not None
    assert dashboard.stderr.read() == (
        "open this address in a browser of this machine; Ctrl-C ends the dashboard\n"
    )
