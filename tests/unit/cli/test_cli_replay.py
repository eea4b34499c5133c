"""The command `replay`."""

import json
import sys
from pathlib import Path

import pytest

from spotelastic.cli.main import main

TRACES = Path(__file__).parents[3] / "benchmarks" / "traces"


def replay(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spotelastic", "replay", *args])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_replay_is_one_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(TRACES / "bamboo-p3.csv")
    asked = ("--min", "2", "--max", "8", "--step-time", "1.2", "--state", "20GB")
    assert replay(monkeypatch, trace, *asked) == 0
    told = capsys.readouterr()
    assert told.err == ""
    goodput, *_ = told.out.splitlines()[-1].split()
    assert 90 < float(goodput.removesuffix("%")) <= 100


def test_programs_get_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(TRACES / "bamboo-g4dn.csv")
    asked = ("--spot-price", "0.5", "--json")
    assert replay(monkeypatch, trace, "--min", "2", "--max", "24", *asked) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["goodput"] > 0.97
    assert outcome["most_nodes"] <= 24
    assert outcome["bill"]["usd"] == pytest.approx(0.5 * outcome["bill"]["spot_hours"])


def test_a_p3_market_that_takes_nodes_every_few_minutes_costs_little(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(TRACES / "bamboo-p3.csv")
    asked = ("--instance-type", "p3.2xlarge", "--json")
    assert replay(monkeypatch, trace, "--min", "2", "--max", "32", *asked) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["most_nodes"], outcome["steps_lost"]) == (32, 0)
    assert outcome["goodput"] >= 0.97


def test_nodes_that_boot_for_longer_than_they_are_waited_for_train_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "market.csv"
    trace.write_text("0,add,a\n9000000,add,b\n")
    asked = ("--boot", "5000", "--json")
    assert replay(monkeypatch, str(trace), *asked) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["steps"], outcome["bill"]["spot_hours"] > 2.0) == (0, True)


FOUR = "0,add,a\n0,add,b\n0,add,c\n0,add,d\n7200000,remove,d\n"


def test_a_maximum_that_the_trace_cannot_have_is_lowered_aloud(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "market.csv"
    trace.write_text(FOUR)
    assert replay(monkeypatch, str(trace), "--max", "8", "--json") == 0
    told = capsys.readouterr()
    assert told.err == ("--max 8: the trace has at most 4 nodes at a time: played with --max 4\n")
    outcome = json.loads(told.out)
    assert [outcome[name] for name in ("min_nodes", "max_nodes", "max_asked")] == [1, 4, 8]
    assert replay(monkeypatch, str(trace), "--json") == 0
    told = capsys.readouterr()
    outcome = json.loads(told.out)
    assert (told.err, outcome["max_nodes"], outcome["max_asked"]) == ("", 4, None)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--min", "4", "--max", "2"), "--max 2: is less than --min 4"),
        (("--min", "0"), "--min"),
        (("--min", "40", "--max", "50"), "--min 40: the trace has at most 24 nodes"),
        (("--boot", "inf"), "--boot inf: expected 0 seconds or more"),
        (("--step-time", "0"), "--step-time 0: expected more than 0 seconds"),
        (("--state", "much"), "--state much: expected a size, such as 20GB"),
        (("--instance-type", "x9.huge"), "give one with --spot-price"),
    ],
)
def test_a_mistake_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    told: str,
) -> None:
    assert replay(monkeypatch, str(TRACES / "bamboo-g4dn.csv"), *args) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_bad_trace_is_told_with_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("0,add,a\n10,add\n")
    assert replay(monkeypatch, str(bad)) == 2
    assert f"{bad}:2: '10,add': expected milliseconds,add|remove,node" in capsys.readouterr().err
