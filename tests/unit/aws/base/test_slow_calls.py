"""A call that AWS does not answer is told while it waits; one that it answers is not."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spotelastic.aws.base import slow_calls
from spotelastic.aws.base.clients import Aws, calling
from spotelastic.errors import SpotelasticError


def test_a_network_that_drops_everything_is_told_while_the_call_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server takes connections and never answers, until the line was told."""
    said: list[str] = []
    seen = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        seen.set()

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        aws = Aws("us-east-1", attempts=1)
        assert aws.sts, "a client is made before it is asked"
        with ThreadPoolExecutor(1) as pool, slow_calls.told(say, after=0.1):
            asked = pool.submit(lambda: aws.account)
            taken, _ = server.accept()
            assert seen.wait(60)
            taken.close()
            with pytest.raises(SpotelasticError):
                asked.result()
    assert said == ["still trying to find out which AWS account this is: no answer for 0.1 s"]


def test_calls_that_wait_beside_each_other_are_told_in_one_line() -> None:
    said: list[str] = []
    seen, both = threading.Event(), threading.Barrier(3)

    def say(line: str) -> None:
        said.append(line)
        seen.set()

    def call(what: str) -> None:
        with slow_calls.watched(what):
            both.wait(60)
            assert seen.wait(60)

    with ThreadPoolExecutor(2) as pool, slow_calls.told(say, after=1.0):
        asked = [pool.submit(call, what) for what in ("one", "another")]
        both.wait(60)
        for each in asked:
            each.result()
    assert len(said) == 1


def test_an_answered_call_is_not_told() -> None:
    said: list[str] = []
    with slow_calls.told(said.append, after=3600.0), calling("ask quickly"):
        before = {*threading.enumerate()}
    assert not any(thread.is_alive() for thread in before - {*threading.enumerate()})
    assert said == []
