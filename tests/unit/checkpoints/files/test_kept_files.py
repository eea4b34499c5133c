"""What a script writes is kept and put back, whoever writes it, leaves, dies or comes late."""

import tempfile
import time
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.files import keeping, placing
from spotelastic_checkpoints.files.keeping import AGAIN, RESTLESS, SWEPT_AFTER
from spotelastic_checkpoints.files.kept import index_key, leads_inside
from support.draws import drawn
from support.saving.kept_files_run import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_file_comes_to_the_next_node_of_its_rank(place: Place) -> None:
    first = place.node("a")
    first.begin(0, place.claim())
    place.write("a", "out/deep/best.pt", b"best")
    (place.base / "a/out/last.pt").symlink_to("deep/best.pt")
    place.time.now += 5
    assert first.keep(2)
    second = place.node("b")
    second.begin(0, place.claim())
    second.put_back(0)
    there = place.base / "b/out"
    assert (there / "deep/best.pt").read_bytes() == b"best" == (there / "last.pt").read_bytes()
    assert (there / "deep/best.pt").stat().st_mtime == pytest.approx(1_000_000.001)
    other = place.node("c")
    other.begin(1, 2)
    other.put_back(1)
    assert not (place.base / "c/out").exists(), "it is another rank's"


def test_a_newer_file_is_left_and_an_older_one_replaced(place: Place) -> None:
    first = place.node("a")
    first.begin(0, place.claim())
    for name in ("newer", "older"):
        place.write("a", f"out/{name}", b"kept")
    first.keep(0)
    second = place.node("b")
    second.begin(0, place.claim())
    place.write("b", "out/newer", b"its own", place.time.now + 1)
    place.write("b", "out/older", b"its own", place.time.now - 1)
    second.put_back(0)
    assert (place.base / "b/out/newer").read_bytes() == b"its own"
    assert (place.base / "b/out/older").read_bytes() == b"kept"
    second.keep(0)
    assert place.kept() == {"out/newer": b"its own", "out/newer~1": b"kept", "out/older": b"kept"}


def test_a_node_that_was_left_out_overwrites_nothing(place: Place) -> None:
    """Whether it writes before its successor has, or after."""
    for moment in ("before", "after"):
        first, second = place.node(f"a-{moment}", moment), place.node(f"b-{moment}", moment)
        first.begin(0, place.claim())
        log = f"{moment}/log"
        place.write(f"a-{moment}", log, b"one")
        first.keep(0)
        second.begin(0, place.claim())
        second.put_back(0)
        place.write(f"a-{moment}", log, b"one, two by the one left out")
        place.write(f"b-{moment}", log, b"one, two by its successor")
        late = (first, second) if moment == "before" else (second, first)
        for node in late:
            node.keep(0)
        kept = place.kept()
        assert kept[log] == b"one, two by its successor"
        assert kept[f"{log}~{first.epoch}"] == b"one, two by the one left out"


def test_what_a_node_that_leaves_writes_last_counts_if_nobody_has_another(place: Place) -> None:
    first, second = place.node("a"), place.node("b")
    first.begin(0, place.claim())
    place.write("a", "out/log", b"one")
    first.keep(0)
    second.begin(0, place.claim())
    second.put_back(0)
    place.write("b", "out/other", b"other")
    second.keep(0)
    place.write("a", "out/log", b"one, two")
    first.keep(0)
    assert place.kept() == {"out/log": b"one, two", "out/other": b"other"}
    place.write("b", "out/other", b"another")
    second.keep(0)
    assert place.kept() == {"out/log": b"one, two", "out/other": b"another"}


def test_a_file_that_the_script_deletes_goes_and_one_that_was_not_put_back_stays(
    place: Place,
) -> None:
    first = place.node("a")
    first.begin(0, place.claim())
    for name in ("kept", "rotated"):
        place.write("a", f"out/{name}", name.encode())
    first.keep(0)
    (place.base / "a/out/rotated").unlink()
    first.keep(0)
    assert place.kept() == {"out/kept": b"kept"}
    second = place.node("b")
    second.begin(0, place.claim())  # the storage is away, and nothing is put back
    place.write("b", "out/new", b"new")
    second.keep(0)
    assert place.kept() == {"out/kept": b"kept", "out/new": b"new"}


def test_a_file_is_kept_when_it_rests_and_read_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = place.node("a")
    node.begin(0, place.claim())
    place.write("a", "out/best.pt", b"half")
    assert not node.keep(2)
    assert place.kept() == {}
    place.write("a", "out/best.pt", b"a whole one")
    place.time.now += 3
    assert node.keep(2)
    assert place.kept() == {"out/best.pt": b"a whole one"}
    monkeypatch.setattr(placing, "opened", None)
    assert node.keep(2)


def test_a_log_that_never_rests_is_kept_as_it_grows_and_half_a_file_never_replaces_one(
    place: Place,
) -> None:
    node = place.node("a", piece=4)
    node.begin(0, place.claim())
    place.write("a", "out/log", b"1 2 3 4 5")
    place.write("a", "out/best.pt", b"whole, version one")
    node.keep(0)
    for text in (b"1 2 3 4 5 6", b"1 2 3 4 5 6 7 8"):
        for _ in range(int(RESTLESS) + 2):
            place.time.now += 1
            place.write("a", "out/log", text)
            place.write("a", "out/best.pt", b"whole, ver")
            assert not node.keep(2)
    kept = place.kept()
    assert kept == {"out/log": b"1 2 3 4 5 6 7 8", "out/best.pt": b"whole, version one"}


def test_a_file_that_takes_long_to_store_is_not_stored_all_the_time(place: Place) -> None:
    node = place.node("a")
    node.begin(0, place.claim())

    def slow() -> bool:
        place.time.now += 3
        return True

    place.write("a", "out/big", b"one")
    place.time.now += 5
    node.keep(2, slow)
    place.write("a", "out/big", b"two")
    place.time.now += 5
    assert not node.keep(2, slow)
    assert place.kept() == {"out/big": b"one"}
    place.time.now += 3 * AGAIN
    assert node.keep(2, slow)
    assert place.kept() == {"out/big": b"two"}


def test_links_and_paths_never_lead_out(place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    node = place.node("a")
    node.begin(0, place.claim())
    out = place.write("a", "out/file", b"kept").parent
    (out / "absolute").symlink_to(tmp_path / "secret")
    (out / "relative").symlink_to("../../secret")
    (out / "folder").symlink_to(tmp_path)
    node.keep(0)
    assert place.kept() == {"out/file": b"kept"}
    for path, link in (
        ("out/x", "/etc/passwd"),
        ("out/x", "../y"),
        ("out/x", "a/../../y"),
        ("out/x", ""),
        ("out/x", "."),
    ):
        assert not leads_inside(path, link, ["out"])
    # A folder of the next node is a link that leads out.
    place.write("a", "out/folder2/file", b"kept")
    node.keep(0)
    second = place.node("b")
    second.begin(0, place.claim())
    (tmp_path / "b/out").mkdir()
    (tmp_path / "b/out/folder2").symlink_to(tmp_path)
    second.put_back(0)
    assert not (tmp_path / "file").exists()
    assert place.told[:3] == [
        f"out/{name} is not kept: it is a link that leads out of the folder"
        for name in ("absolute", "folder", "relative")
    ]
    assert "out/folder2/file could not be put back" in place.told[3]
    assert (tmp_path / "b/out/file").read_bytes() == b"kept"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "out/../../x", "out//x", "", "out/./x", "a\0b"])
def test_an_index_that_leads_out_is_refused(place: Place, path: str) -> None:
    node = place.node("a")
    node.begin(0, place.claim())
    place.write("a", "out/file", b"kept")
    node.keep(0)
    key = index_key(0, 1)
    blob = place.storage.get(key)
    assert blob is not None
    escaped = path.replace("\0", "\\u0000").encode()
    place.storage.put(key, memoryview(blob.data.replace(b"out/file", escaped)))
    with pytest.raises(StorageRefused, match="no node can have kept"):
        place.store.indexes(0)


def test_what_nothing_names_any_more_is_deleted(place: Place) -> None:
    first = place.node("a", piece=4)
    first.begin(0, place.claim())
    for number in range(5):
        place.write("a", "out/file", b"same%d" % number)
        first.keep(0)
    assert len(place.storage.keys("files/0/")) == 2, "the piece in common, and one"
    assert place.kept() == {"out/file": b"same4"}
    second = place.node("b", piece=4)
    second.begin(0, place.claim())
    second.put_back(0)
    place.write("b", "out/file", b"other")
    second.keep(0)
    place.write("a", "out/file", b"by the one left out")
    first.keep(0)
    assert len(place.storage.keys("files/0/")) > 4, "nothing of a rank goes that may be read"
    place.time.now += SWEPT_AFTER + 1
    second.keep(0)
    kept = place.kept()
    assert kept == {"out/file": b"other", "out/file~1": b"by the one left out"}
    assert len(place.storage.keys("files/index/0/")) == 1
    named = {p.digest for f in place.store.kept()[0].files.values() for p in f.pieces}
    assert {key.rpartition("/")[2] for key in place.storage.keys("files/0/")} == named


def test_a_fresh_start_begins_without_files(place: Place) -> None:
    node = place.node("a")
    node.begin(0, place.claim())
    place.write("a", "out/file", b"of before")
    node.keep(0)
    place.commits.begin_afresh()
    second = place.node("b")
    second.begin(0, place.claim())
    second.put_back(0)
    assert not (place.base / "b/out").exists()
    assert place.kept() == {}


def test_a_daemon_that_takes_over_reads_nothing_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.node("a")
    first.begin(0, place.claim())
    place.write("a", "out/file", b"kept")
    first.keep(0)
    again = place.node("a")
    again.begin(0, first.epoch)
    again.put_back(0, missing=True)
    monkeypatch.setattr(placing, "opened", None)
    assert again.keep(0)


def test_files_of_several_ranks_with_one_name_are_all_there(place: Place) -> None:
    epoch = place.claim()
    for rank, text in enumerate((b"same", b"same", b"other")):
        node = place.node(f"n{rank}")
        node.begin(rank, epoch)
        place.write(f"n{rank}", "out/metrics.csv", text)
        node.keep(0)
    assert place.kept() == {"out/metrics.csv": b"same", "out/metrics.csv.rank-2": b"other"}


def test_an_outage_loses_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    node = place.node("a")
    node.begin(0, place.claim())
    for name in "abc":
        place.write("a", f"out/{name}", name.encode())
    calls = count(1)
    put = place.storage.put

    def sometimes(key: str, data: memoryview, *more: object) -> None:
        if next(calls) % 2:
            raise StorageUnavailable("away")
        put(key, data)

    monkeypatch.setattr(place.storage, "put", sometimes)
    for _ in range(12):
        try:
            if node.keep(0):
                break
        except StorageUnavailable:
            continue
    assert place.kept() == {f"out/{name}": name.encode() for name in "abc"}


def test_the_next_node_waits_for_the_last_files_of_one_that_leaves_but_not_for_long(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = place.node("a"), place.node("b")
    first.begin(0, place.claim())
    first.leaving = place.time.now + 60
    place.write("a", "out/log", b"one")
    first.keep(0)
    second.begin(0, place.claim())

    def writes_its_last(seconds: float) -> None:
        place.time.now += seconds
        place.write("a", "out/log", b"one, two")
        first.leaving = 0.0
        first.keep(0)

    monkeypatch.setattr(time, "sleep", writes_its_last)
    second.put_back(0)
    assert (place.base / "b/out/log").read_bytes() == b"one, two"
    first.leaving = place.time.now + 60
    first.keep(0)
    waited: list[float] = []

    def passes(seconds: float) -> None:
        waited.append(seconds)
        place.time.now += seconds

    monkeypatch.setattr(time, "sleep", passes)
    place.node("c").put_back(0)
    assert sum(waited) == pytest.approx(keeping.LEAVER_WITHIN, abs=0.2)
    assert (place.base / "c/out/log").read_bytes() == b"one, two"


# -- whatever happens ------------------------------------------------------------------------------

PATHS = ("out/a", "out/b")
NODES = st.integers(0, 2)
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NODES, st.sampled_from(PATHS), st.booleans()),
        st.tuples(st.just("delete"), NODES, st.sampled_from(PATHS), st.none()),
        st.tuples(st.just("keep"), NODES, st.none(), st.none()),
        st.tuples(st.just("write and keep"), NODES, st.sampled_from(PATHS), st.booleans()),
        st.tuples(st.just("restart"), NODES, st.none(), st.none()),
        st.tuples(st.just("round"), st.permutations(range(3)), st.integers(1, 2), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=drawn(100), deadline=None)
@given(HAPPENINGS)
def test_no_version_is_lost_but_to_one_whose_writer_had_it(happenings: list[tuple]) -> None:  # type: ignore[type-arg]
    """Nodes get ranks, write, store, leave, store late, and come back in any order.

    The oracle knows for each version from which one it was made. One that was stored may go only
    where what was made of it is there, or where its script has deleted it.
    """
    with tempfile.TemporaryDirectory() as base:
        _happen(Place(Path(base)), happenings)


def _happen(place: Place, happenings: list[tuple]) -> None:  # type: ignore[type-arg]
    nodes = [place.node(f"n{number}") for number in range(3)]
    made_of: dict[bytes, bytes] = {}
    deleted: set[bytes] = set()
    stored: set[bytes] = set()
    numbers = count(1)

    def disk(number: int, path: str) -> Path:
        return place.base / f"n{number}" / path

    for what, which, some, grows in happenings:
        place.time.now += 1
        if what == "round":
            epoch = place.claim()
            for rank, number in enumerate(which[:some]):
                nodes[number].begin(rank, epoch)
                nodes[number].put_back(rank, missing=grows)
        elif what.startswith("write"):
            there = disk(which, some)
            before = there.read_bytes() if there.exists() else b""
            new = (before if grows else b"") + b"<%d>" % next(numbers)
            made_of[new] = before
            place.write(f"n{which}", some, new)
        elif what == "delete" and disk(which, some).exists():
            deleted.add(disk(which, some).read_bytes())
            disk(which, some).unlink()
        elif what == "restart":
            node, before_it = place.node(f"n{which}"), nodes[which]
            nodes[which] = node
            if before_it.rank >= 0:
                node.begin(before_it.rank, before_it.epoch)
                node.put_back(node.rank, missing=True)
        if what.endswith("keep") and nodes[which].keep(0) and nodes[which].epoch:
            stored |= {file.read_bytes() for path in PATHS if (file := disk(which, path)).exists()}
    accounted = set(deleted) | set(place.kept().values())
    for version in list(accounted):
        while version := made_of.get(version, b""):
            accounted.add(version)
    assert stored <= accounted
