"""A process that keeps files is killed at each step that it takes in the storage.

What is kept then is what was kept before, or what would have been: never a third, and never an
index that names what is not there. The process after it goes on from there.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from spotelastic_checkpoints.files.keeping import SWEPT_AFTER, KeptFolders
from support.saving.kept_files_run import Place

EVENTS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir")
"""What Python tells of before it is done: each change of a folder, and each look at a file."""
BEFORE = {"out/log": b"one two", "out/best.pt": b"best of one", "out/old.pt": b"gone soon"}
AFTER = {"out/log": b"one two three", "out/best.pt": b"best of two", "out/new.pt": b"is new"}


def killed_at(step: int, storage: Path, work: Callable[[], object]) -> bool:
    """Do this in a process that is killed before that step. Returns whether it came so far."""
    pid = os.fork()
    if pid == 0:
        left = step

        def look(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in EVENTS and str(arguments[0]).startswith(str(storage)):
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(look)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def keeps_changes(place: Place, name: str = "a") -> KeptFolders:
    """A node whose first files are kept, and whose script has changed them since."""
    node = place.node(name, piece=4)
    node.begin(0, place.claim())
    for path, data in BEFORE.items():
        place.write(name, path, data)
    assert node.keep(0)
    for path, data in AFTER.items():
        place.write(name, path, data)
    (place.base / name / "out/old.pt").unlink()
    return node


def follows(place: Place) -> KeptFolders:
    """The node after it, which has the same changes to make, in an epoch of its own."""
    keeps_changes(place)
    node = place.node("b", piece=4)
    node.begin(0, place.claim())
    node.put_back(0)
    for path, data in AFTER.items():
        place.write("b", path, data)
    (place.base / "b/out/old.pt").unlink()
    return node


def sweeps(place: Place) -> KeptFolders:
    """The node after it, which has nothing to do but to delete what is of no use any more."""
    node = follows(place)
    assert node.keep(0) and place.kept() == AFTER
    place.time.now += SWEPT_AFTER + 1
    return node


@pytest.mark.parametrize(
    ("begin", "before"),
    [
        (keeps_changes, BEFORE),
        pytest.param(follows, BEFORE, marks=pytest.mark.soak),
        pytest.param(sweeps, AFTER, marks=pytest.mark.soak),
    ],
)
def test_what_is_kept_is_the_old_or_the_new(
    begin: Callable[[Place], KeptFolders], before: dict[str, bytes]
) -> None:
    found: list[dict[str, bytes]] = []
    for step in range(1, 1000):
        with tempfile.TemporaryDirectory() as base:
            place = Place(Path(base))
            node = begin(place)
            was_killed = killed_at(step, Path(base) / "storage", partial(node.keep, 0))
            found.append(place.kept())  # it reads each piece that is named
            assert found[-1] in (before, AFTER), f"a third, when killed at step {step}"
            again = place.node(node.node, piece=4)
            again.begin(0, node.epoch)
            again.put_back(0, missing=True)
            assert again.keep(0)
            kept = place.kept()
            assert AFTER.items() <= kept.items()
            # Nobody knows that the one before it had had these, or had found one deleted.
            more = {path.partition("~")[0]: data for path, data in kept.items() - AFTER.items()}
            assert more.items() <= BEFORE.items()
            if not was_killed:
                break
    assert found[0] == before and found[-1] == AFTER
    assert len(found) > 10 or begin is sweeps, "it was killed within the work"
    switches = sum(one != other for one, other in pairwise(found))
    assert switches == (before != AFTER), "what is kept changes in one step"
