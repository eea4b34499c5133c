"""A private index of packages: the build has its secrets, and nothing that stays has them."""

import base64
import gzip
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.clusters.memory_bucket import MemoryBucket
from support.processes.wheels import tiny

from spotelastic.aws.artifacts.build_secrets import build_variables, hiding
from spotelastic.aws.artifacts.environments import BuildFailed, Environments
from spotelastic.aws.artifacts.requirements import find
from spotelastic.client.config import variables
from spotelastic.errors import UsageError
from spotelastic.model.job import Environment

USER, PASSWORD = "robot", "pa55/word"
QUOTED = "pa55%2Fword"


class PrivateIndex(ThreadingHTTPServer):
    """Has one wheel, for who knows the password."""

    def __init__(self, wheel: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.wheel = wheel
        self.host = f"127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: PrivateIndex

    def do_GET(self) -> None:
        known = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        wheel = self.server.wheel
        if self.headers.get("Authorization") != f"Basic {known}":
            self._send(401, b"")
        elif self.path == "/simple/tinymath/":
            self._send(200, f'<a href="/files/{wheel.name}">{wheel.name}</a>'.encode())
        elif self.path == f"/files/{wheel.name}":
            self._send(200, wheel.read_bytes())
        else:
            self._send(404, b"")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="packages"')
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@dataclass
class Place:
    """A folder with a job, and the bucket of its cluster."""

    folder: Path
    index: PrivateIndex
    bucket: MemoryBucket = field(default_factory=lambda: MemoryBucket("demo"))
    said: list[str] = field(default_factory=list)

    def build(self, secrets: Mapping[str, str]) -> Path:
        home = self.folder / "home"
        found = Environments(self.bucket, home, "n0", self.said.append, secrets=secrets)
        return found.ensure(self.wanted, self.code)

    @property
    def code(self) -> Path:
        return self.folder / "code"

    @property
    def wanted(self) -> Environment:
        found = find(self.code, None, "code")
        assert found is not None
        return found

    def kept(self) -> bytes:
        """All that is in the bucket, unpacked, and all that was said."""
        found = ["\n".join(self.said).encode()]
        for name in self.bucket.names(""):
            data = self.bucket.get(name) or b""
            found.append(gzip.decompress(data) if name.endswith(".gz") else data)
        return b"\n".join(found)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "code").mkdir()
    (tmp_path / "index").mkdir()
    index = PrivateIndex(tiny(tmp_path / "index"))
    (tmp_path / "code/requirements.txt").write_text("tinymath\n")
    serving = threading.Thread(target=index.serve_forever)
    serving.start()
    yield Place(tmp_path, index)
    index.shutdown()
    serving.join()
    index.server_close()


@pytest.mark.parametrize("form", ["url", "netrc"])
def test_a_package_of_a_private_index_is_installed_and_nothing_tells_the_password(
    place: Place, form: str
) -> None:
    host = place.index.host
    secrets = {"PIP_INDEX_URL": f"http://{USER}:{QUOTED}@{host}/simple/"}
    if form == "netrc":
        netrc = f"machine 127.0.0.1\n login {USER}\n password {PASSWORD}\n"
        secrets = {"PIP_INDEX_URL": f"http://{host}/simple/", "NETRC": netrc}
    python = place.build(secrets)
    assert list(python.parents[1].glob("lib/*/site-packages/tinymath.py"))
    for spelling in (PASSWORD, QUOTED):
        assert spelling.encode() not in place.kept()
        for file in python.parents[1].rglob("*"):
            assert file.is_dir() or spelling.encode() not in file.read_bytes(), file


def test_a_build_that_fails_tells_why_without_the_password(place: Place) -> None:
    (place.code / "requirements.txt").write_text("absent\n")
    url = f"http://{USER}:{QUOTED}@{place.index.host}/simple/"
    with pytest.raises(BuildFailed, match="absent") as told:
        place.build({"PIP_INDEX_URL": url})
    stored = place.kept()
    assert b"absent" in stored, "the reason is there for the other nodes"
    for spelling in (PASSWORD, QUOTED):
        assert spelling not in str(told.value) and spelling.encode() not in stored
    assert told.value.__cause__ is None


@pytest.mark.parametrize(
    "text",
    [
        "cannot fetch https://robot:pa55%2Fword@host/simple/",
        "401 for pa55/word",
        "line 3: password pa55/word",
        "Looking in https://other:hunter2@elsewhere/",
    ],
)
def test_passwords_are_hidden_in_every_spelling(text: str) -> None:
    values = {"PIP_INDEX_URL": "https://robot:pa55%2Fword@host/simple/ https://h/"}
    found = hiding(values)(text)
    assert "***" in found
    assert not any(each in found for each in (PASSWORD, QUOTED, "hunter2"))


def test_a_netrc_file_is_for_the_build_and_for_nobody_else() -> None:
    netrc = "machine m login a password b"
    with build_variables({"NETRC": netrc, "UV_INDEX_P_USERNAME": "a"}) as its:
        file = Path(its["NETRC"])
        assert file.read_text() == netrc
        assert file.stat().st_mode & 0o077 == 0
        assert its["UV_INDEX_P_USERNAME"] == "a"
    assert not file.exists()


def test_values_come_from_where_the_job_has_them_and_the_script_does_not_get_them(
    tmp_path: Path,
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine m login a password b")
    env, found = variables.build_secrets(
        ["A", "B", "C", "NETRC"],
        given={"A": "from the file", "KEPT": "1"},
        hidden={"B": "a secret"},
        environ={"A": "here", "C": "here", "NETRC": str(netrc)},
    )
    assert env == {"KEPT": "1"}
    assert found == {
        "A": "from the file",
        "B": "a secret",
        "C": "here",
        "NETRC": "machine m login a password b",
    }


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--build-secret A: there is no such variable here"):
        variables.build_secrets(["A"], {}, {}, {})
    gone = {"NETRC": str(tmp_path / "gone")}
    with pytest.raises(UsageError, match=r"--build-secret NETRC: .*gone cannot be read"):
        variables.build_secrets(["NETRC"], {}, {}, gone)
    with pytest.raises(UsageError, match="--build-secret A-B: the name of a variable"):
        variables.build_secrets(["A-B"], {}, {}, {})
