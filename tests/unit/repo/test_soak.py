"""The account that `make soak` gives of its turns."""

from itertools import product
from pathlib import Path

import pytest
from support.repo import soak

REPORT = """<testsuites><testsuite>
<testcase file="tests/faults/test_a.py" name="test_good"/>
<testcase file="tests/faults/test_a.py" name="test_bad[101]"><failure/></testcase>
<testcase file="tests/faults/test_a.py" name="test_ugly"><error/></testcase>
</testsuite></testsuites>"""


def test_failures_are_named_with_their_turn_and_no_turn_stops_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pytest_of(number: int) -> soak.Turn:
        if number != 1:
            return soak.Turn(number, True, 3, (), 60.0)
        report = tmp_path / "report.xml"
        report.write_text(REPORT)
        return soak.account(number, 1, report, 61.0)

    monkeypatch.chdir(tmp_path)
    assert soak.main(["2"], pytest_of) == 1
    told = capsys.readouterr().out.splitlines()
    assert "turn 1: FAILED, 3 tests, 61 s" in told
    assert "turn 1 failed: SOAK_TURN=1 pytest 'tests/faults/test_a.py::test_bad[101]'" in told
    assert "turn 1 failed: SOAK_TURN=1 pytest 'tests/faults/test_a.py::test_ugly'" in told
    assert told[-1] == "soak: 1 of 2 passed"
    assert soak.main(["1"], lambda number: soak.Turn(number, True, 3, (), 60.0)) == 0


def test_a_turn_that_was_ended_before_it_told_anything_has_failed(tmp_path: Path) -> None:
    turn = soak.account(1, -9, tmp_path / "none.xml", 1.0)
    assert not turn.passed and turn.tests == 0


def test_ten_turns_meet_every_call_with_several_faults_and_one_turn_a_third_of_them() -> None:
    kinds, calls = 8, range(1, 101)
    for first in range(24):
        tried = [
            {pair for pair in product(calls, range(kinds)) if soak.meets(*pair, kinds, turn)}
            for turn in range(first, first + 10)
        ]
        met = [pair for turn in tried for pair in turn]
        assert len(met) == len(set(met)), "none twice"
        assert min(sum(at == call for at, _ in met) for call in calls) >= 2
        assert max(map(len, tried)) <= len(calls) // 3 + kinds
