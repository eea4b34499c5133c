"""What instances install: the caller's own wheel, and etcd's own release."""

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from threading import Thread
from typing import IO

import pytest
from support.clusters.memory_bucket import MemoryBucket
from support.processes.patience import PATIENT

from spotelastic import __version__
from spotelastic.aws.artifacts import boot_artifacts, wheel
from spotelastic.aws.artifacts.boot_artifacts import CURRENT, PROGRAMS, BootRelease
from spotelastic.aws.base.infra_files import infra
from spotelastic.errors import EnvironmentFailure


@dataclass
class Bucket(MemoryBucket):
    """Notes what is written."""

    cluster: str = "demo"
    puts: list[str] = field(default_factory=list)

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        super().put(name, data)
        self.puts.append(name)


@contextmanager
def published(folder: Path) -> Iterator[BootRelease]:
    """A release of the test's own on a server of its own."""
    release = BootRelease("9.9.9", "")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for program in PROGRAMS:
            info = tarfile.TarInfo(f"{release.folder}/{program}")
            info.size = len(program)
            archive.addfile(info, io.BytesIO(program.encode()))
    path = folder / "v9.9.9" / f"{release.folder}.tar.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(raw.getvalue())

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        digest = hashlib.sha256(raw.getvalue()).hexdigest()
        yield replace(release, sha256=digest, site=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_wheel_is_this_installation_whole_and_always_the_same(tmp_path: Path) -> None:
    built = wheel.build()
    wheel.build.cache_clear()
    assert wheel.build() == built
    with zipfile.ZipFile(io.BytesIO(built.data)) as archive:
        archive.extractall(tmp_path)
        record = archive.read(f"spotelastic-{__version__}.dist-info/RECORD").decode()
    assert len(record.splitlines()) == len([p for p in tmp_path.rglob("*") if p.is_file()])
    code = (
        "from importlib.metadata import entry_points\n"
        "import spotelastic, spotelastic_checkpoints\n"
        "from spotelastic.aws.base.infra_files import infra\n"
        "(found,) = entry_points(group='console_scripts', name='spotelastic')\n"
        "print(spotelastic.__file__, infra('cluster.yaml'), found.value)"
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
        timeout=PATIENT,
    )
    package = tmp_path / "spotelastic"
    told = f"{package}/__init__.py {package}/_infra/cluster.yaml spotelastic.cli.main:main\n"
    assert (done.stdout, done.stderr) == (told, "")


def test_the_wheel_has_every_file_that_a_boot_reads() -> None:
    with zipfile.ZipFile(io.BytesIO(wheel.build().data)) as archive:
        held = {name for name in archive.namelist() if name.startswith("spotelastic/_infra/")}
    script = infra("boot/boot.sh").read_text() + infra("boot/install.sh").read_text()
    read = {f"spotelastic/_infra/boot/{name}" for name in re.findall(r"\$infra/([\w.]+)", script)}
    assert read == {
        f"spotelastic/_infra/boot/{name}"
        for name in ("install.sh", "packages.txt", "spotelastic.service")
    }
    assert held >= read | {f"spotelastic/_infra/{name}" for name in ("cluster.yaml", "laptop.json")}


def test_up_ships_each_thing_once_and_names_what_is_current(tmp_path: Path) -> None:
    bucket, said = Bucket(), list[str]()
    with published(tmp_path) as release:
        boot_artifacts.ship(bucket, release, said.append)
        boot_artifacts.ship(bucket, release, said.append)
    current = bucket.objects[CURRENT].decode()
    constraints = f"boot/{current.partition('/')[0]}/constraints.txt"
    expected = [f"boot/{current}", constraints, CURRENT, release.object]
    assert sorted(bucket.puts) == sorted(expected)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("here", "constraints"),
    [
        ("2.13.0+cpu", "torch==2.13.0\n"),
        ("2.13.0", "torch==2.13.0\n"),
        ("2.14.0.dev20261101+cu130", ""),
        ("2.13.0a0+gitabc", ""),
        ("1.13.1", ""),
    ],
)
def test_workers_get_the_callers_torch_where_they_can_have_it(
    here: str, constraints: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_artifacts, "version", lambda _: here)
    assert boot_artifacts.constraints() == constraints


def test_a_caller_without_torch_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(boot_artifacts, "version", none)
    assert boot_artifacts.constraints() == ""


def test_a_node_fetches_etcd_where_up_could_not(tmp_path: Path) -> None:
    bucket, said = Bucket(), list[str]()
    with published(tmp_path) as release:
        away = replace(release, site="http://127.0.0.1:9")
        boot_artifacts.ship(bucket, away, said.append)
        assert "cannot fetch" in said[-1] and not bucket.has(release.object)
        boot_artifacts.install(bucket, release, tmp_path / "bin")
        boot_artifacts.ship(bucket, release, said.append)
    found = {path.name: path.stat().st_mode & 0o111 for path in (tmp_path / "bin").iterdir()}
    assert found == dict.fromkeys(PROGRAMS, 0o111)
    # Its site is gone by now: the bucket is enough.
    boot_artifacts.install(bucket, release, tmp_path / "again")
    assert (tmp_path / "again/etcd").read_bytes() == b"etcd"


def test_what_is_not_the_release_is_never_installed(tmp_path: Path) -> None:
    bucket = Bucket()
    with published(tmp_path) as release:
        other = replace(release, sha256="0" * 64)
        with pytest.raises(EnvironmentFailure, match=r"is not etcd 9\.9\.9 as it was released"):
            boot_artifacts.fetch(other)
    bucket.objects[release.object] = b"something else"
    with pytest.raises(EnvironmentFailure, match=r"memory://demo/boot/etcd.* is not etcd"):
        boot_artifacts.install(bucket, release, tmp_path / "bin")
    assert not (tmp_path / "bin").exists()
