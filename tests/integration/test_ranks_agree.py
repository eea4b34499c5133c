"""What ranks do alike: new layouts, random numbers, and one read for all of a node."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.format.layout import SHARED
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.types import Commit, Resume
from support.processes.patience import PATIENT
from support.processes.warm_python import WarmPython
from support.saving.daemons_and_workers import (
    Node,
    Worker,
    cluster,
    fetched,
    is_content_of,
    plan_of,
    round_info,
)
from support.saving.faulty_s3 import FaultyS3
from support.scripts.agreeing import SAVED_AT, SEED, STEPS, WAKES
from torch.distributed import checkpoint as dcp

import spotelastic as se
from spotelastic.training.data import randomness

TESTS = Path(__file__).parent.parent


Run = Callable[..., object]


@pytest.fixture
def run(warm_torch: WarmPython) -> Run:
    """Runs one of the scripts in tests/support in a folder, for what is named."""
    environ = os.environ | {"SPOTELASTIC_KEEP_LAST": "20"}

    def run(folder: Path, *what: str, script: str = "agreeing") -> None:
        words = ("-W", "ignore", "-m", f"support.scripts.{script}", folder, *what)
        warm_torch.run(*words, environ=environ, check=True)

    return run


def told(folder: Path, turn: str, world: int) -> list[Any]:
    return [json.loads((folder / f"{turn}-{rank}.json").read_text()) for rank in range(world)]


def test_ranks_agree_on_a_layout_only_where_it_is_new(tmp_path: Path, run: Run) -> None:
    run(tmp_path, "layout")
    agreed = {1, WAKES + 1}
    for collectives in told(tmp_path, "collectives", 2):
        called = {step for step, names in enumerate(collectives, 1) if names}
        assert called == agreed, collectives
    steps = [entry.step for entry in Catalog(FolderStorage(tmp_path / "store")).entries()]
    assert steps == [step for step in range(1, STEPS + 1) if step != WAKES]
    for step in range(WAKES + 1, STEPS + 1):
        moments = {"exp_avg": torch.zeros(2, 8), "exp_avg_sq": torch.zeros(2, 8)}
        reader = se.dcp.CheckpointReader(tmp_path / "store" / "1" / f"step-{step:08d}")
        target = {"optimizer": {"state": {"1.weight": moments}}}
        dcp.load(target, storage_reader=reader, no_dist=True)
        expected = torch.load(tmp_path / f"moments-{step}.pt")
        assert expected["step"] == step - WAKES + 1
        for name, found in moments.items():
            assert torch.equal(found, expected[name])


@pytest.mark.soak
def test_with_another_number_of_ranks_each_is_seeded_from_seed_step_and_rank(
    tmp_path: Path, run: Run
) -> None:
    run(tmp_path, "randomness")
    more, again = told(tmp_path, "more", 3), told(tmp_path, "again", 3)
    assert more == again
    assert told(tmp_path, "same", 2) == told(tmp_path, "saved", 2)
    for kind in zip(*(numbers for _, *draws in more for numbers in draws), strict=True):
        assert len(set(kind)) == len(kind), "no two ranks draw the same"
    for rank, (seed, *_) in enumerate(more):
        with torch.random.fork_rng(devices=[]):
            randomness.derive(SEED, SAVED_AT, rank)
            assert torch.initial_seed() == seed


def test_what_ranks_do_not_have_alike_is_refused_or_each_rank_s_own(
    tmp_path: Path, run: Run
) -> None:
    """Values, slices of moments, buffers, pipeline stages, and what is kept per rank."""
    run(tmp_path, script="unlike_ranks")


@pytest.mark.soak
def test_pipeline_stages_that_are_replicated_come_back_on_fewer_copies(
    tmp_path: Path, run: Run
) -> None:
    """Two stages on two ranks each, and then on one each."""
    run(tmp_path, script="mixed_parallel")


def begun(node: Node, incarnation: str) -> tuple[int, list[Worker]]:
    """The epoch of a round of this node alone, and its two workers."""
    epoch, plan = node.agent.claim("test", timeout=PATIENT).epoch, plan_of(2, 2)
    node.begin(round_info(incarnation, 0, [node.name], 2, epoch))
    return epoch, [Worker(str(node.socket), incarnation, rank, rank, plan) for rank in range(2)]


def left(workers: list[Worker]) -> None:
    for worker in workers:
        worker.client.leave(clean=True)


def test_ranks_of_one_node_share_what_is_read_from_s3(
    tmp_path: Path, s3_endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultyS3(s3_endpoint, f"s3://{bucket}/run") as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        with cluster(tmp_path, workers=2, storage=s3.url) as [node]:
            epoch, workers = begun(node, "r1")
            for worker in workers:
                worker.save(1)
            assert workers[0].client.flush(PATIENT)
            assert node.agent.status().commit == Commit(epoch, 1)
            left(workers)
            node.agent.end()

            _, workers = begun(node, "r2")
            resume = Resume("store", 1, epoch=epoch)
            s3.given.clear()
            with ThreadPoolExecutor() as both:
                found = list(both.map(lambda worker: fetched(worker.client, resume), workers))
            assert all(is_content_of(contents, 1) for contents in found)
            items = [piece.item for piece in found[0].pieces()]
            state = sum(item.length for item in items if item.rank == SHARED)
            assert state <= s3.given_of_shards(1) < 1.05 * state
            left(workers)


STRANGER = """\
import os
import support.training.forked
from spotelastic.errors import SpotelasticError
from spotelastic.training.runtime import session as environment

def restore(rank, world):
    round_ = "old" if rank == 1 else "new"
    os.environ.update(SPOTELASTIC_DAEMON="/none", SPOTELASTIC_ROUND=round_, SPOTELASTIC_RESUME="{}")
    try:
        environment.open_session(None, None, take_over=False)
    except SpotelasticError as error:
        os.write(1, f"{rank}: {error}\\n".encode())  # in one piece

support.training.forked.run(3, restore)
"""


def test_a_worker_of_another_round_is_no_rank_of_this_one(warm_torch: WarmPython) -> None:
    """It may come to a port that rounds share."""
    done = warm_torch.run("-c", STRANGER, check=True)
    why = "its node has lost its connection to the run"
    assert sorted(done.stdout.splitlines()) == [
        f"0: rank 1 belongs to another round than rank 0: {why}",
        f"1: rank 0 belongs to another round than rank 1: {why}",
        f"2: rank 1 belongs to another round than rank 2: {why}",
    ]


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 4))])
def test_what_is_put_together_of_a_step_is_all_of_before_a_change_or_all_of_after_it(
    tmp_path: Path, run: Run, seed: int
) -> None:
    run(tmp_path, str(seed), script="changed_between_saves")
    assert int((tmp_path / "seen").read_text()) > 20
    entries = Catalog(FolderStorage(tmp_path / "store")).entries()
    assert len(entries) > 3
    for entry in entries:
        tensors = {f"t{number}": torch.zeros(1000) for number in range(4)}
        reader = se.dcp.CheckpointReader(tmp_path / "store" / "1" / f"step-{entry.step:08d}")
        dcp.load(tensors, storage_reader=reader, no_dist=True)
        assert len({value for each in tensors.values() for value in each.unique().tolist()}) == 1
