"""A node whose hosts' names have no address yet knows by its own name whether it is one of them."""

import socket

import pytest

from spotelastic.launcher.etcd_bootstrap import is_named_here
from spotelastic.launcher.flags import parse
from spotelastic.launcher.rendezvous_config import meeting

HOSTS = "train-0.train,train-1.train,train-2.train"


@pytest.mark.parametrize(
    ("hostname", "here"),
    [
        ("train-1", [False, True, False]),
        ("train-1.train.ml.svc.cluster.local", [False, True, False]),
        ("train-10", [False, False, False]),
    ],
)
def test_a_host_is_known_by_the_machines_name(
    hostname: str, here: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    assert [is_named_here(host) for host in HOSTS.split(",")] == here


@pytest.mark.parametrize(("conf", "awaits"), [("await_names=true", True), ("", False)])
def test_names_are_awaited_where_that_is_asked_for(conf: str, awaits: bool) -> None:
    flags = ("--nnodes=2:8", "--rdzv-backend=c10d", f"--rdzv-endpoint={HOSTS}")
    told = meeting(parse([*flags, f"--rdzv-conf={conf}", "train.py"], {}), 2, 8)
    assert told.await_names is awaits
    assert told.role == "either"
