"""Certificates that are about to end: who is told, when, and what to do."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from spotelastic.cli.commands import status
from spotelastic.client.cluster import Cluster
from spotelastic.client.targets import find
from spotelastic.clock import wall
from spotelastic.model.counting import DAY
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.progress import Status
from spotelastic.model.validity import RENEW_WITHIN, REPLACE_WITHIN, Validity

NOW = 1_900_000_000.0  # 2030-03-17
LONG = NOW + 3000 * DAY


@pytest.mark.parametrize(
    ("certificates", "authority", "said"),
    [
        (0.0, 0.0, ""),
        (NOW + RENEW_WITHIN, NOW + REPLACE_WITHIN, ""),
        (
            NOW + RENEW_WITHIN - 1,
            LONG,
            "demo's nodes expires on 2030-04-16: run `spotelastic up` a",
        ),
        (NOW - DAY, LONG, "demo's nodes expired on 2030-03-16: run `spotelastic up` again"),
        (
            NOW + 300 * DAY,
            NOW + 300 * DAY,
            "expires on 2031-01-11: run `spotelastic down demo` and",
        ),
        (
            NOW + DAY,
            NOW + DAY,
            "the authority that signs demo's certificates expires on 2030-03-18",
        ),
        (NOW - DAY, NOW - DAY, "the authority that signs demo's certificates expired on"),
    ],
)
def test_an_end_is_told_in_time_with_what_to_do(
    certificates: float, authority: float, said: str
) -> None:
    told = Validity(certificates, authority).warning("demo", NOW)
    assert said in told
    assert bool(said) == bool(told)


def test_status_warns_beside_what_programs_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SPOTELASTIC_HOME", str(tmp_path))  # the user's own may have such a cluster
    spec = JobSpec("demo", "demo", "train.py", (), "c0de", Settings(1, 2), "s3://bucket/demo", ())

    def look(validity: Validity) -> tuple[str, str]:
        cluster = SimpleNamespace(name="demo", spec=replace(spec, validity=validity))
        found = SimpleNamespace(cluster_or_gone=lambda *_: cluster)
        monkeypatch.setattr(find, "find", lambda *_: found)
        monkeypatch.setattr(Cluster, "status", lambda _: Status("demo", "running", NOW))
        status.status("demo", json=True)
        captured = capsys.readouterr()
        return captured.out, captured.err

    good, ending = Validity(wall() + 300 * DAY), Validity(wall() + DAY)
    out, err = look(good)
    assert err == ""
    assert look(ending)[0] == out
    assert "warning: a certificate of demo's nodes expires on" in look(ending)[1]


def test_status_tells_a_warning_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """For people in the table; for programs on stderr, too, beside the JSON."""
    monkeypatch.setenv("SPOTELASTIC_HOME", str(tmp_path))
    spec = JobSpec("demo", "demo", "train.py", (), "c0de", Settings(1, 2), "s3://bucket/demo", ())
    found = SimpleNamespace(cluster_or_gone=lambda *_: SimpleNamespace(name="demo", spec=spec))
    monkeypatch.setattr(find, "find", lambda *_: found)
    told = Status("demo", "running", NOW, warnings=("a node is odd",))
    monkeypatch.setattr(Cluster, "status", lambda _: told)
    for as_json in (False, True):
        status.status("demo", json=as_json)
        captured = capsys.readouterr()
        assert (captured.out.count("a node is odd"), captured.err.count("odd")) == (
            (2, 1) if as_json else (1, 0)
        )
