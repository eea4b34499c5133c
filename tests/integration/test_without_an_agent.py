"""A script that nobody but stock torchrun, or nobody at all, has started."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.storage.open import open_storage
from support.processes.patience import PATIENT, eventually
from support.processes.run_launcher import comm, descendants
from support.processes.warm_python import WarmPython
from support.saving.faulty_s3 import FaultyS3
from support.training.open_checkpointer import slots_are_waited_for
from support.training.small_model import make, one_step

import spotelastic as se
from spotelastic.errors import SpotelasticError

TESTS = Path(__file__).parent.parent
WORLD, STEPS, STOP = 2, 10, 6
"""Ranks wait after a step that is sealed and, by the schedule, not to be committed."""

TRAIN = """
import hashlib, os, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import spotelastic as se
from spotelastic.training.save import saving

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
saving.PATIENCE = 60.0  # on a machine with much to do a slot may come late
storage, steps, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()


def tell(*words):
    # In one write: the ranks share the pipe.
    os.write(1, (" ".join(map(str, (*words, os.getpid()))) + "\\n").encode())


torch.manual_seed(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
state = {"model": model, "optimizer": optimizer}
with se.Checkpointer(state, storage=storage, snapshot_every=1, checkpoint_every=4) as saved:
    begun = step = saved.restore()
    while step < steps:
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        saved.step(step)
        if step == stop:
            tell("stopped", step)
            signal.sigwait({signal.SIGUSR1})
        if step == 8 and not saved.wait():
            sys.exit("step 8 is not committed")
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
tell("ended", begun, step, hashlib.sha256(weights.numpy().tobytes()).hexdigest())
dist.destroy_process_group()
"""


@dataclass
class Torchrun:
    """Stock torchrun with the script above, on one node."""

    process: "subprocess.Popen[str]"
    errors: Path
    workers: list[int] = field(default_factory=list)

    def stopped(self) -> None:
        """Waits until all ranks are at the step at which they wait."""
        told = [self._hears("stopped") for _ in range(WORLD)]
        assert {int(step) for _, step, _ in told} == {STOP}
        self.workers = [int(pid) for *_, pid in told]

    def ended(self) -> set[tuple[int, int, str]]:
        """Where the ranks began and ended, and with what weights."""
        told = [self._hears("ended") for _ in range(WORLD)]
        assert self.process.wait(PATIENT) == 0, self.errors.read_text()
        return {(int(begun), int(step), digest) for _, begun, step, digest, _ in told}

    def daemon(self) -> int:
        [daemon] = [pid for pid in descendants(self.process.pid) if comm(pid) == "se-daemon"]
        return daemon

    def _hears(self, what: str) -> list[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(what):
                return line.split()
        raise AssertionError(f"it ended without a word: {self.errors.read_text()}")


@contextmanager
def torchrun(folder: Path, stop: int = 0) -> Iterator[Torchrun]:
    script = folder / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(WORLD), str(script)]
    with (folder / "errors").open("ab") as errors:
        process = subprocess.Popen(
            [*command, str(folder / "store"), str(STEPS), str(stop)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SPOTELASTIC_KEEP_LAST": "10"},
            start_new_session=True,
        )
    try:
        yield Torchrun(process, folder / "errors")
    finally:
        # Its workers end with it.
        process.terminate()
        process.wait(PATIENT)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the weights that training without an interruption leads to."""
    with torchrun(tmp_path_factory.mktemp("straight")) as run:
        [(begun, step, digest)] = run.ended()
    assert (begun, step) == (0, STEPS)
    return digest


def committed(folder: Path) -> int:
    latest = Commits(open_storage(str(folder / "store")), "standalone").latest()
    return latest.step if latest is not None else 0


def killed(run: Torchrun) -> None:
    for pid in (run.process.pid, *run.workers):
        os.kill(pid, signal.SIGKILL)


def told_by_a_scheduler(run: Torchrun) -> None:
    """Which knows of all processes of the job."""
    for pid in (run.daemon(), run.process.pid, *run.workers):
        os.kill(pid, signal.SIGTERM)


@pytest.mark.soak
@pytest.mark.parametrize("end", [killed, told_by_a_scheduler])
def test_a_run_that_ends_as_a_whole_goes_on_from_what_was_sealed_last(
    tmp_path: Path, digest: str, end: Callable[[Torchrun], None]
) -> None:
    with torchrun(tmp_path, stop=STOP) as run:
        run.stopped()
        assert committed(tmp_path) < STOP
        end(run)
    with torchrun(tmp_path) as run:
        assert run.ended() == {(STOP, STEPS, digest)}
    assert committed(tmp_path) == STEPS


@pytest.mark.soak
def test_a_daemon_that_is_killed_is_replaced_and_what_comes_then_is_committed(
    tmp_path: Path, digest: str
) -> None:
    with torchrun(tmp_path, stop=STOP) as run:
        run.stopped()
        os.kill(run.daemon(), signal.SIGKILL)
        for pid in run.workers:
            os.kill(pid, signal.SIGUSR1)
        assert run.ended() == {(0, STEPS, digest)}
    assert committed(tmp_path) == STEPS
    assert (tmp_path / "store" / "1" / "step-00000008" / ".metadata").exists()
    told = run.errors.read_text()
    assert told.count("the checkpoint daemon died; another one has replaced it") == 1
    assert "could not be committed" not in told


Scripted = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def scripted(warm_torch: WarmPython) -> Scripted:
    """Runs code with arguments."""
    return partial(warm_torch.run, "-c")


HOSTS = """
import os, sys
from pathlib import Path
import torch
import spotelastic as se
import support.training.forked
from spotelastic.training.runtime import session as environment


def train(rank, world, *folders):
    os.environ.update(GROUP_RANK=str(rank), LOCAL_RANK="0")
    with se.Checkpointer({"t": torch.ones(4)}, storage=folders[rank]) as saved:
        saved.step(1)


environment.SEEN_WITHIN = 0.5
support.training.forked.run(2, train, *sys.argv[1:])
"""


@pytest.fixture
def hosts(scripted: Scripted) -> Scripted:
    """Runs two ranks that are each the only one of its host, whose storage is that folder there."""
    return partial(scripted, HOSTS)


@pytest.mark.soak
def test_hosts_that_have_a_folder_each_are_refused_and_told_what_to_do(
    tmp_path: Path, hosts: Scripted
) -> None:
    told = hosts(tmp_path / "a", tmp_path / "b")
    assert told.returncode == 1
    assert re.search(
        rf"UsageError: storage {tmp_path}/[ab]: what .*-0 writes there does not appear on .*-1: "
        "name a folder that all hosts share, or s3://",
        told.stderr,
    )


def test_hosts_that_share_a_folder_commit_together(tmp_path: Path, hosts: Scripted) -> None:
    told = hosts(tmp_path / "store", tmp_path / "store")
    assert told.returncode == 0, told.stderr
    assert committed(tmp_path) == 1
    assert not [*(tmp_path / "store").glob(".seen-*")]


DEALT = """
import os, sys
from pathlib import Path
import torch
import spotelastic as se
import support.training.forked
from spotelastic.training.save import saving
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from support.processes.patience import eventually

saving.PATIENCE = 60.0  # on a machine with much to do a slot may come late


def train(rank, world, storage):
    del os.environ["LOCAL_RANK"]
    os.environ["SPOTELASTIC_NODE"] = "ab"[rank % 2]
    with se.Checkpointer({"t": torch.ones(4)}, storage=storage, checkpoint_every=1) as saved:
        saved.step(1)
        eventually((Path(storage) / "1" / "step-00000001" / ".metadata").exists)
        client = DaemonClient(saved._session.socket)
        told = [(worker.rank, worker.step) for worker in client.status().workers]
        client.close()
        assert told == [(rank % 2, 1), (rank % 2 + 2, 1)], told


support.training.forked.run(4, train, *sys.argv[1:])
"""


@pytest.mark.soak
def test_ranks_that_a_starter_deals_out_over_hosts_commit_by_the_schedule(
    tmp_path: Path, scripted: Scripted
) -> None:
    """As `mpirun --map-by node` and `srun --distribution=cyclic` do."""
    told = scripted(DEALT, tmp_path / "store")
    assert told.returncode == 0, told.stderr


LEAVING = """
import sys
import torch
import torch.distributed as dist
import spotelastic as se
import support.training.forked
from spotelastic.training.save import saving

saving.PATIENCE = 60.0  # on a machine with much to do a slot may come late
if sys.argv[2] != "4":
    saving.COMMIT_WITHIN = 1.0  # what never comes is waited for


def train(rank, world, storage, rows):
    state = {"t": torch.zeros(4), "step": 0}
    with se.Checkpointer(state, storage=storage, snapshot_every=2, checkpoint_every=2) as saved:
        for step in (1, 2, 3):
            state["t"] += 1
            state["step"] = step
            saved.step(step)
        dist.destroy_process_group()
        if rank == 1:
            state["t"] = torch.full((int(rows),), 3.0)


support.training.forked.run(2, train, *sys.argv[1:])
"""


@pytest.fixture
def left(scripted: Scripted, tmp_path: Path) -> Scripted:
    """Runs two ranks that leave the process group before the Checkpointer; the state of one of them
    has so many rows then.
    """
    return partial(scripted, LEAVING, tmp_path / "store")


def test_a_last_step_is_committed_by_ranks_that_have_left_their_group(
    tmp_path: Path, left: Scripted
) -> None:
    told = left(4)
    assert told.returncode == 0, told.stderr
    assert committed(tmp_path) == 3
    state: dict[str, Any] = {"t": torch.zeros(4), "step": 0}
    with se.Checkpointer(state, storage=str(tmp_path / "store")) as checkpoint:
        assert checkpoint.restore() == 3
    assert (state["step"], state["t"].tolist()) == (3, [3.0] * 4)


@pytest.mark.soak
def test_a_layout_that_nobody_can_agree_on_any_more_is_told(tmp_path: Path, left: Scripted) -> None:
    told = left(5)
    assert told.returncode, "a run whose last step is lost is no success"
    eventually(lambda: committed(tmp_path) == 2, "a commit that its daemon may still be at")
    assert "step 3 was not saved: t is new, gone, or of another shape" in told.stderr
    assert "step 3 could not be committed" in told.stderr


@pytest.fixture
def s3(s3_endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    with FaultyS3(s3_endpoint, f"s3://{bucket}/run") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def test_training_goes_on_without_the_right_to_write_and_the_reason_is_told_once(
    s3: FaultyS3, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots_are_waited_for(monkeypatch)
    refused = 3
    for _ in range(refused):
        s3.answer("PUT", ".distcp", 403)
    state = make()
    with se.Checkpointer(state, storage=s3.url, checkpoint_every=1) as checkpoint:
        checkpoint.restore()
        for step in range(1, refused + 1):
            checkpoint.step(step, loss=one_step(state))
            assert not checkpoint.wait()
        checkpoint.step(refused + 1, loss=one_step(state))
        assert checkpoint.wait()
    told = re.findall("^spotelastic: .*", capfd.readouterr().err, re.MULTILINE)
    assert len(told) == 1
    assert told[0].startswith(f"spotelastic: step 1 was not committed: {s3.url}/1/step-00000001/")
    assert "403 AccessDenied: give these credentials the rights" in told[0]


def test_a_bucket_that_is_not_there_is_named_before_training_begins(
    s3: FaultyS3, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(SpotelasticError, match="there is no bucket missing: create it first"),
        se.Checkpointer(make(), storage="s3://missing/run"),
    ):
        pass
    assert not capfd.readouterr().err


ALONE = """
import sys
import torch
import spotelastic as se
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with se.Checkpointer({"model": model, "optimizer": optimizer}) as saved:
    step = saved.restore()
    print("begins at", step, flush=True)
    if len(sys.argv) > 2:
        sys.stdin.read()
    while step < int(sys.argv[1]):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        saved.step(step)
"""


def test_a_script_says_what_it_goes_on_from_and_lets_nobody_in(
    tmp_path: Path, warm_torch: WarmPython
) -> None:
    (tmp_path / "train.py").write_text(ALONE)

    def train(*args: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return warm_torch.run("train.py", *args, folder=tmp_path, environ=os.environ | env)

    assert train("3").stderr == ""
    command = [sys.executable, "train.py", "3", "wait"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=-1, stdout=-1, text=True) as waits:
        assert waits.stdout is not None and waits.stdout.readline() == "begins at 3\n"
        refused = train("4")
        assert refused.returncode == 1 and refused.stdout == ""
        assert re.fullmatch(
            r"spotelastic: another run \(train.py 3 wait, begun .*\) uses ./runs/train: .*\n",
            refused.stderr,
        )
        waits.kill()
    done = train("3").stderr
    assert re.search(
        "resuming from step 3 in ./runs/train, saved .* ago by train.py 3; "
        "begin afresh with SPOTELASTIC_FRESH=1",
        done,
    )
    assert "no step was executed: the run had already reached step 3; " in done
    fresh = train("2", SPOTELASTIC_FRESH="1")
    assert fresh.stdout == "begins at 0\n"
    assert fresh.stderr.count("\n") == 1 and "beginning afresh: step 3" in fresh.stderr
