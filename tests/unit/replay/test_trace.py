"""Spot traces as files."""

import json
import math
from pathlib import Path

import pytest

from spotelastic.errors import UsageError
from spotelastic.replay.trace import Span, read

TRACES = Path(__file__).parents[3] / "benchmarks" / "traces"


def written(folder: Path, text: str, name: str = "market.csv") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_events_become_nodes_with_a_beginning_and_perhaps_an_end(tmp_path: Path) -> None:
    text = "# of somewhere\n0,add,a\n\n1500,add,b\n60000,remove,a\n90000,add,a\n"
    trace = read(written(tmp_path, text))
    assert trace.name == "market"
    assert trace.spans == (
        Span("a", 0.0, 60.0),
        Span("b", 1.5, math.inf),
        Span("a", 90.0, math.inf),
    )
    assert (trace.length, trace.most_nodes, trace.taken) == (90.0, 2, 1)


def test_counts_become_nodes_that_are_there_at_the_time(tmp_path: Path) -> None:
    counts = [3, 3, 1, 0, 4]
    text = f'{{"metadata": {{"gap_seconds": 600}}, "data": {counts}}}'
    file = written(tmp_path, text, "zone.json")
    trace = read(file)
    for interval, count in enumerate(counts):
        at = interval * 600.0
        assert sum(span.start <= at < span.end for span in trace.spans) == count
    assert trace.length == 3000.0
    assert read(file) == trace


def test_a_trace_of_launches_is_refused(tmp_path: Path) -> None:
    told = {"metadata": {"gap_seconds": 600, "price_info": {"price": 1.2}}, "data": [0, 0, 1, 0]}
    with pytest.raises(UsageError, match=r"zone\.json: with price_info it tells of launches"):
        read(written(tmp_path, json.dumps(told), "zone.json"))


def test_public_traces_are_read_whole() -> None:
    p3, g4dn = read(TRACES / "bamboo-p3.csv"), read(TRACES / "bamboo-g4dn.csv")
    assert (p3.most_nodes, p3.taken, len(p3.spans)) == (32, 167, 177)
    assert (g4dn.most_nodes, g4dn.taken, len(g4dn.spans)) == (24, 74, 79)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("0,add,a\n5,gone,a\n", 2, "expected milliseconds,add|remove,node"),
        ("0,add,a\nx,remove,a\n", 2, "expected milliseconds,add|remove,node"),
        ("0,add\n", 1, "expected milliseconds,add|remove,node"),
        ("0,add,a\n-5,remove,a\n", 2, "expected milliseconds,add|remove,node"),
        (f"0,add,a\n{'9' * 400},remove,a\n", 2, "expected milliseconds,add|remove,node"),
        ("500,add,a\n200,remove,a\n", 2, "goes back in time"),
        ("0,add,a\n9,add,a\n", 2, "a is added a second time"),
        ("0,add,a\n9,remove,b\n", 2, "b is not there"),
        ('{"metadata": {"gap_seconds": 600},\n "data": [1, 2,\n x]}', 3, "not valid JSON"),
        ('{"metadata": {"gap_seconds": 600},\n "data": [1, 2,\n -1]}', 3, "expected a number of"),
        ('{"metadata": {"gap_seconds": 600},\n "data": [1, 2.5]}', 2, "expected a number of"),
        ('{"metadata": {\n"gap_seconds": 0},\n "data": [1]}', 2, "no gap_seconds"),
        ('{"metadata": {"gap_seconds": 600},\n "data": "many"}', 2, "no list of counts"),
        ('{"data": [1]}', 1, "no gap_seconds"),
    ],
)
def test_what_is_no_trace_is_refused_with_file_line_and_what_was_expected(
    tmp_path: Path, text: str, line: int, told: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        read(file)
    assert str(refused.value).startswith(f"{file}:{line}: ")
    assert told in str(refused.value)


def test_files_without_a_trace_are_refused_by_name(tmp_path: Path) -> None:
    binary = tmp_path / "core"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    for file in (tmp_path / "missing.csv", tmp_path, binary, written(tmp_path, "")):
        with pytest.raises(UsageError, match=str(file)):
            read(file)
    with pytest.raises(UsageError, match="covers no time"):
        read(written(tmp_path, "0,add,a\n"))
