"""What `spotelastic run` says to commands that cannot work: one line with flag and value."""

import contextlib
import http.server
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest
from support.processes.patience import PATIENT
from support.processes.ports import held_ports
from support.processes.warm_python import WarmPython, warm_python
from support.store.certificates import certificates

from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig
from spotelastic.store.tls import TlsFiles

AT_ONCE = 4
LAUNCHER = ("spotelastic.launcher.run", "spotelastic.launcher.other_nodes", "spotelastic.cli.main")
"""Some of what the command imports."""

SOLO, PAIR, HOSTS = "--standalone", "--nnodes 2 --rdzv-endpoint", "--rdzv-backend c10d"
CASES = {
    "min above max": ("--nnodes 4:2 train.py", "--nnodes 4:2: needs 1 ≤ MIN ≤ MAX"),
    "no nodes": ("--nnodes 0 train.py", "--nnodes 0: needs 1 ≤ MIN ≤ MAX"),
    "no script": (f"{SOLO} missing.py", "no such script: missing.py"),
    "not python": (f"{SOLO} broken.py", "broken.py is not a Python file: line 1"),
    "storage is a file": (
        f"{SOLO} --storage train.py train.py",
        "--storage train.py: ",
        "Not a directory",
    ),
    "logs are a file": (f"{SOLO} --log-dir train.py train.py", "--log-dir train.py: File exists"),
    "logs below a file": (
        f"{SOLO} --log-dir train.py/logs train.py",
        "--log-dir train.py/logs: Not a directory",
    ),
    "no endpoint": ("--nnodes 2 train.py", "--rdzv-endpoint is missing"),
    "no gpu": (
        f"{SOLO} --nproc-per-node gpu train.py",
        "--nproc-per-node gpu: this machine has no",
    ),
    "wrong scheme": (f"{PAIR} etcd://h:1 train.py", "--rdzv-endpoint etcd://h:1: only http://"),
    "unknown name": (
        f"{PAIR} nowhere.invalid:1 train.py",
        "--rdzv-endpoint nowhere.invalid:1: no etcd 3",
        "no address is known for nowhere.invalid",
    ),
    "unreachable": (
        f"{PAIR} {{closed}} train.py",
        "--rdzv-endpoint {closed}:",
        "connection refused",
    ),
    "silent": (f"{PAIR} {{silent}} train.py", "--rdzv-endpoint {silent}:", "does not answer"),
    "several": (
        f"{PAIR} {{closed}},{{silent}} train.py",
        "{closed}: connection refused",
        "{silent}: it accepts",
    ),
    "http": (f"{PAIR} http://{{web}} train.py", "--rdzv-endpoint {web}:", "not etcd"),
    "etcd 2": (f"{PAIR} {{old}} train.py", "--rdzv-endpoint {old}:", "etcd 2.3.8 answers"),
    "plain to tls": (f"{PAIR} {{tls}} train.py", "--rdzv-endpoint {tls}:", "it speaks TLS"),
    "tls to plain": (
        f"{PAIR} {{etcd}} --rdzv-conf protocol=https,cacert=ca.pem train.py",
        *("--rdzv-endpoint {etcd}", "--rdzv-conf protocol=https,cacert=", "does not speak TLS"),
    ),
    "other authority": (
        f"{PAIR} https://{{tls}} --rdzv-conf cacert=other.pem train.py",
        *("--rdzv-endpoint {tls}", "its certificate: ", "(by cacert={folder}/other.pem)"),
    ),
    "no client certificate": (
        f"{PAIR} https://{{tls}} --rdzv-conf cacert=ca.pem train.py",
        *("--rdzv-endpoint {tls}", "does not accept this client's certificate (cert=, key=)"),
    ),
    "no such file": (
        f"{PAIR} https://{{tls}} --rdzv-conf cacert=no.pem train.py",
        "--rdzv-conf cacert=no.pem: No such file",
    ),
    "not a certificate": (
        f"{PAIR} https://{{tls}} --rdzv-conf cacert=train.py train.py",
        "--rdzv-conf cacert=train.py: not a PEM file",
    ),
    "two hosts": (
        f"{HOSTS} --rdzv-endpoint 127.0.0.1,127.0.0.2 train.py",
        "--rdzv-endpoint 127.0.0.1:29400,127.0.0.2:29400: 2 etcd members",
    ),
    "peer port in use": (
        f"{HOSTS} --rdzv-endpoint 127.0.0.1:{{free}},127.0.0.2:{{free}},127.0.0.3:{{free}} "
        "--rdzv-conf peer_port={taken} train.py",
        "use port {taken} among each other, which is in use here: give --rdzv-conf peer_port=",
    ),
    "not here": (
        f"{HOSTS} --rdzv-endpoint 192.0.2.1 --rdzv-conf is_host=true train.py",
        "--rdzv-endpoint 192.0.2.1:29400: ",
        "not this machine",
    ),
}
"""Each command, and what its one line holds. {words} are the places below."""


class _Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.answer)  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def web(answer: bytes) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Web) as server:
        server.answer = answer  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def tls_member(folder: Path, ports: tuple[int, int], tls: TlsFiles) -> Iterator[EtcdMember]:
    ours, among = (f"127.0.0.1:{port}" for port in ports)
    config = MemberConfig("m", folder / "data", ours, among, fsync=False, tls=tls)
    with EtcdMember(config, log=folder / "log") as member:
        member.start()
        member.await_service(PATIENT)
        yield member


@pytest.fixture(scope="module")
def places(
    etcd_member: EtcdMember, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Where the commands are sent, and the folder that they run in."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "train.py").touch()
    (folder / "broken.py").write_text("for step in\n")
    tls, other = certificates(folder / "tls"), certificates(folder / "other")
    for files, name in ((tls, "ca.pem"), (other, "other.pem")):
        assert files.cacert is not None
        (folder / name).write_bytes(files.cacert.read_bytes())
    with (
        held_ports(4) as (client, peer, closed, free),
        tls_member(folder, (client, peer), tls) as member,
        web(b"<html>") as page,
        web(b'{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}') as old,
        listener() as silent,
        listener() as taken,
    ):
        yield {
            "folder": str(folder),
            "etcd": etcd_member.endpoint,
            "tls": member.endpoint,
            "web": page,
            "old": old,
            "silent": silent,
            "closed": f"127.0.0.1:{closed}",
            "free": str(free),
            "taken": taken.rpartition(":")[2],
        }


@pytest.fixture(scope="module")
def answers(places: dict[str, str]) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of each command. All run side by side: most of them wait."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}

    free: Queue[WarmPython] = Queue()

    def launch(case: tuple[str, ...]) -> tuple[int, str, str]:
        words = case[0].format(**places).split()
        python = free.get()
        done = python.run(
            "-m", "spotelastic", "run", *words, folder=Path(places["folder"]), environ=environ
        )
        free.put(python)
        return done.returncode, done.stdout, done.stderr

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in range(AT_ONCE):
            free.put(stack.enter_context(warm_python(*LAUNCHER)))
        return dict(zip(CASES, pool.map(launch, CASES.values()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line_that_names_flag_and_value(
    name: str, answers: dict[str, tuple[int, str, str]], places: dict[str, str]
) -> None:
    _, *told = CASES[name]
    code, out, err = answers[name]
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert all(words.format(**places) in err for words in told), err
