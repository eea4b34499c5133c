"""What the programs of a booted instance have in common."""

from pathlib import Path

import pytest
from support.clusters.local_cloud import until
from support.processes.needed_threads import begun
from support.processes.patience import PATIENT

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.security import certificates
from spotelastic.bootstrap import context
from spotelastic.certificates import Certificate
from spotelastic.errors import Unavailable


def pem(word: str) -> str:
    return f"-----BEGIN {word}-----\n-----END {word}-----\n"


def held(*words: str) -> tuple[bytes, ...]:
    return tuple(pem(word).encode() for word in words)


def test_a_certificate_that_up_renews_replaces_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    stored = Certificate(*map(pem, ("authority", "old", "old key")))
    failures = [Unavailable("no answer")]

    def fetch(_aws: Aws, parameter: str) -> Certificate:
        assert parameter == "/its/own"
        if stored.certificate == pem("new") and failures:
            raise failures.pop()
        return stored

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(certificates, "fetch", fetch)
    aws = Aws("us-east-1")
    files = context.certificate(aws, "/its/own")
    assert files.read() == held("authority", "old key", "old")
    over, thread = begun(lambda: context.keep_fresh(aws, "/its/own", every=0.01))
    try:
        stored = Certificate(*map(pem, ("authority", "new", "new key")))
        until(lambda: files.read() == held("authority", "new key", "new"))
    finally:
        over.set()
        thread.join(PATIENT)  # it would ask AWS once nothing stands in for it any more
    assert said == ["no answer"]
