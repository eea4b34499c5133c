"""The agent's side of the daemon: found again after a crash, ended when the agent ends."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.tls import PeerTls
from spotelastic_checkpoints.peers.transfers import Peer
from support.processes.run_launcher import comm
from support.store.certificates import certificates
from support.store.etcd_members import wait_until

from spotelastic.agent.checkpoints import Checkpoints
from spotelastic.agent.config import AgentConfig
from spotelastic.model.job import Settings


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    for name in ("state", "shm"):
        (tmp_path / name).mkdir()
    return AgentConfig(
        run="r",
        endpoints=(),
        node="a",
        address="127.0.0.1",
        zone="",
        settings=Settings(1, 1),
        command=("x.py",),
        workdir=tmp_path,
        state=tmp_path / "state",
        shm=tmp_path / "shm",
        storage=str(tmp_path / "storage"),
        keep_daemon=True,
    )


def daemons(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and comm(int(entry.name)) == "se-daemon":
            with contextlib.suppress(OSError):  # one of another test, which has ended meanwhile
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def test_an_agent_started_again_finds_the_daemon_and_ends_it(
    config: AgentConfig, tmp_path: Path
) -> None:
    crashed = Checkpoints(config, lambda event: None)
    address = crashed.open()
    again = Checkpoints(config, lambda event: None)
    assert again.open() == address, "the same daemon"
    assert len(daemons(tmp_path)) == 1
    again.close()
    wait_until(lambda: not daemons(tmp_path), "the daemon has ended")
    crashed.close()


def test_daemons_are_given_the_certificates_and_say_whom_they_refuse(
    config: AgentConfig, tmp_path: Path, said: list[str]
) -> None:
    tls = certificates(tmp_path / "tls")
    assert tls.cacert and tls.cert and tls.key
    agent = Checkpoints(
        replace(config, token="ours", daemon_tls=tls, daemon_name="member"),
        lambda event: None,
    )
    try:
        address = agent.open()
        other = PeerCredentials("ours", PeerTls(tls.cacert, tls.cert, tls.key, "member"))
        Peer(address, other).close()
        with pytest.raises(RestoreFailed, match=f"{address}: it speaks TLS only"):
            Peer(address, PeerCredentials("ours"))
        wait_until(lambda: bool(said), "the agent is told")
        assert said[0].startswith(
            "checkpoints: 127.0.0.1 gets no snapshots from this node: it does"
        )
    finally:
        agent.close()


def test_the_daemon_keeps_what_the_job_is_told_to_keep(config: AgentConfig, tmp_path: Path) -> None:
    settings = replace(config.settings, keep_last=5, keep_every=1000)
    agent = Checkpoints(replace(config, settings=settings), lambda event: None)
    agent.open()
    (daemon,) = daemons(tmp_path)
    words = Path(f"/proc/{daemon}/cmdline").read_bytes().split(b"\0")
    agent.close()
    assert words[words.index(b"--keep-last") + 1] == b"5"
    assert words[words.index(b"--keep-every") + 1] == b"1000"
