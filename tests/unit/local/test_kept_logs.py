"""The output of local workers is kept in files, which `logs` reads when the local cloud is gone."""

import json
import os
import sys
import time
from calendar import timegm
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.aws.account import REGION, account

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.messaging import log_group
from spotelastic.aws.messaging.log_group import LogStream
from spotelastic.cli.main import main
from spotelastic.clock import wall
from spotelastic.local import cloud
from spotelastic.local.base.kept_logs import KeptLogs, cluster_of
from spotelastic.model.job import JobSpec, Settings

NAME = "quokka"
FIRST, SECOND = "20260101-120000", "20260102-120000"


@given(st.lists(st.tuples(st.integers(0, 2**50), st.text())))
def test_lines_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, str]]
) -> None:
    kept = KeptLogs(tmp_path_factory.mktemp("kept"))
    kept.append(NAME, "2026/i-1/rank-0", lines[:1])
    kept.append(NAME, "2026/i-1/rank-0", lines[1:])
    assert kept.read(NAME, "2026/i-1/rank-0") == lines
    assert kept.streams(NAME) == ["2026/i-1/rank-0"]


def test_a_line_that_is_incomplete_is_left_out(tmp_path: Path) -> None:
    kept = KeptLogs(tmp_path)
    kept.append(NAME, "i-1/rank-0", [(1, "whole"), (2, "cut")])
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-3])
    assert kept.read(NAME, "i-1/rank-0") == [(1, "whole")]


def test_only_groups_of_clusters_are_kept() -> None:
    groups = ("/spotelastic/quokka", "/spotelastic/", "/spotelastic/a/b", "/aws/lambda/x", "x")
    assert [cluster_of(group) for group in groups] == ["quokka", None, None, None, None]


def test_the_next_local_cloud_has_the_lines_of_the_last_one(tmp_path: Path) -> None:
    its, stream = Names(NAME), LogStream(FIRST, "i-1", 0)
    for text in ("one", "two"):
        with account(tmp_path):
            aws = Aws(REGION)
            log_group.ensure(aws, its)
            if text == "one":
                aws.logs.create_log_stream(logGroupName=its.log_group, logStreamName=str(stream))
            put(aws, str(stream), text)
            found = list(log_group.GroupOutput(aws, its.log_group).lines())
    assert [(line.stream, line.text) for line in found] == [(stream, "one"), (stream, "two")]
    assert len({line.id for line in found}) == 2
    with account(tmp_path):
        aws = Aws(REGION)
        assert log_group.GroupOutput(aws, its.log_group).streams() == [stream]
        assert list(log_group.GroupOutput(aws, its.log_group).lines("2099")) == []
        log_group.delete(aws, its)
    with account(tmp_path):
        assert log_group.GroupOutput(Aws(REGION), its.log_group).streams() == []


def put(aws: Aws, stream: str, text: str) -> None:
    event = {"timestamp": int(wall() * 1000), "message": text}
    group = Names(NAME).log_group
    aws.logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=[event])


def test_what_is_older_than_cloudwatch_keeps_it_goes_when_a_cloud_starts(tmp_path: Path) -> None:
    kept = KeptLogs(tmp_path / "output")
    kept.append(NAME, f"{FIRST}/i-1/rank-0", [(1, "old")])
    kept.append(NAME, f"{SECOND}/i-2/rank-0", [(2, "new")])
    long_ago = wall() - (log_group.KEPT_DAYS + 1) * 86400
    (old,) = (tmp_path / "output" / NAME / FIRST).rglob("*.jsonl")
    os.utime(old, (long_ago, long_ago))
    with account(tmp_path):
        assert log_group.GroupOutput(Aws(REGION), Names(NAME).log_group).streams() == [
            LogStream(SECOND, "i-2", 0)
        ]
    assert kept.streams(NAME) == [f"{SECOND}/i-2/rank-0"]


# -- `spotelastic logs` while no local cloud runs ------------------------------------------------


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptLogs:
    monkeypatch.setenv("SPOTELASTIC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    kept, now = KeptLogs(cloud.logs()), int(wall() * 1000)
    spec = JobSpec(
        NAME,
        NAME,
        "train.py",
        (),
        "",
        Settings(1, 2),
        "s3://b",
        (),
        born_at=timegm(time.strptime(SECOND, "%Y%m%d-%H%M%S")),
    )
    its = cloud.buckets() / "bucket" / NAME
    its.mkdir(parents=True)
    (its / "job.json").write_bytes(msgspec.json.encode(spec))
    kept.append(NAME, f"{FIRST}/i-1/rank-0", [(now - 10**8, "first")])
    kept.append(NAME, f"{SECOND}/i-2/rank-0", [(now - 900_000, "early"), (now, "late")])
    kept.append(NAME, f"{SECOND}/i-3/rank-1", [(now - 1000, "other")])
    return kept


def logs(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spotelastic", "logs", *args, "--local"])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_logs_of_a_local_cluster_are_printed_when_the_local_cloud_has_ended(
    left: KeptLogs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for args, expected in {
        (): ["i-2 rank 0: early", "i-3 rank 1: other", "i-2 rank 0: late"],
        ("--follow",): ["i-2 rank 0: early", "i-3 rank 1: other", "i-2 rank 0: late"],
        ("--rank", "1"): ["i-3 rank 1: other"],
        ("--node", "i-2"): ["i-2 rank 0: early", "i-2 rank 0: late"],
        ("--since", "5m", "--rank", "0"): ["i-2 rank 0: late"],
        ("--previous", "1"): ["i-1 rank 0: first"],
    }.items():
        assert logs(monkeypatch, NAME, *args) == 0
        out, err = capsys.readouterr()
        assert out.splitlines() == expected
        assert err == f"{NAME} is gone: these are its last logs\n"
    assert logs(monkeypatch, NAME, "--json", "--rank", "1") == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["node"], line["rank"], line["text"]) == ("i-3", 1, "other")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("nope",), "no local cloud is running: start one"),
        ((NAME, "--previous", "2"), "--previous 2: there are logs of 1 earlier cluster named"),
        ((NAME, "--rank", "7"), "--rank 7: quokka has no such rank; the ranks are: 0 to 1"),
        ((NAME, "--node", "i-1"), "--node i-1 is not a node of quokka; the nodes are: i-2, i-3"),
        ((NAME, "--since", "soon"), "--since soon: expected a time, such as 90s, 10m or 2h"),
    ],
)
def test_what_there_are_no_logs_of_is_refused_in_one_line(
    left: KeptLogs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    told: str,
) -> None:
    assert logs(monkeypatch, *args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(f"spotelastic: {told}")
