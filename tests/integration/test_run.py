"""`spotelastic run` with real agents, workers, daemons and a real etcd."""

import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from spotelastic_checkpoints.addresses import is_free
from support.processes.patience import PATIENT
from support.processes.run_launcher import SCRIPT, NodeProcess, resumed_steps, running

from spotelastic.launcher.run_folders import PREFIX, SHARED_MEMORY
from spotelastic.store.etcd_server.process import EtcdMember, standalone

TWO = ("--nproc-per-node", "2")
"""Machines need not be alike."""


def test_a_run_goes_through_arrival_failure_departure_and_loss(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    with running(etcd_member.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2:3") as run:
        first, second = run.add("a"), run.add("b", args=TWO)
        run.trains("a", "b", beyond=5)
        run.add("c")
        arrived = run.trains("a", "b", "c")
        before = run.record(arrived.number - 1)
        assert before.last_step == arrived.resume.step, "an arrival loses no step"

        os.kill(second.workers()[0], signal.SIGKILL)
        run.wait(lambda s: s.round and s.round.cause == "worker", "a new round")
        restarted = run.trains("a", "b", "c")
        lost = run.record(restarted.number - 1).last_step - restarted.resume.step
        before = run.record(restarted.number - 1)
        assert 0 <= lost <= before.round.schedule.snapshot_every
        assert restarted.resume.kind == "memory" and len(restarted.charged) == 1

        first.signal(signal.SIGTERM)
        assert first.wait(PATIENT) == 128 + signal.SIGTERM
        left = run.trains("b", "c")
        assert run.record(left.number - 1).last_step == left.resume.step
        assert left.cause == "drain" and left.nodes == ("a",)
        assert f"leaves after step {left.resume.step}" in first.output

        run.nodes["c"].kill()
        waiting = run.wait(
            lambda s: s.round and [m.node for m in s.round.members] == ["b"], "b waits alone"
        )
        assert waiting.round is not None and waiting.round.phase == "proposed"
        run.add("d", args=("--nproc-per-node", "3"))
        replaced = run.trains("b", "d")
        assert replaced.resume.kind == "memory", "b's slots serve the newcomer"
        assert [replaced.ranks(member) for member in replaced.members] == [(0, 1), (2, 3, 4)]


@pytest.mark.soak
@pytest.mark.skipif(not is_free("::1", 0), reason="there is no IPv6 here")
def test_nodes_with_ipv6_addresses_fill_each_other_from_memory(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "etcd", host="::1") as etcd,
        running(
            etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1:2", flags=("--local-addr", "::1")
        ) as run,
    ):
        run.add("a")
        run.seals("a")
        run.add("b")
        round_ = run.trains("a", "b")
        assert round_.resume.kind == "memory", "b got it from a's daemon"
        assert round_.store.startswith("[::1]:") and {m.address for m in round_.members} == {"::1"}


def test_a_finished_run_ends_on_all_nodes_and_is_committed(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    with running(etcd_member.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2") as run:
        nodes = [run.add("a", str(SCRIPT), "60"), run.add("b", str(SCRIPT), "60", args=TWO)]
        assert [node.wait() for node in nodes] == [0, 0]
        sums = {line for n in nodes for line in n.output.splitlines() if "sum" in line}
        assert len(sums) == 3, "a line of each rank"
        assert len({line.partition("sum")[2] for line in sums}) == 1
        assert (tmp_path / "checkpoints" / "LATEST").is_file()
        again = run.wait(lambda s: s.job, "the job's end").job
        assert again is not None and (again.state, again.final_step) == ("succeeded", 60)


@pytest.mark.soak
def test_intervals_are_measured_and_change_while_training_goes_on(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    auto = ("--snapshot-every", "auto", "--checkpoint-every", "auto")
    name = uuid.uuid4().hex
    with running(etcd_member.endpoint, name, tmp_path, nnodes="2", flags=auto) as run:
        nodes = [run.add("a"), run.add("b")]
        began = run.trains("a", "b")
        run.wait(lambda s: s.round and s.round.schedule != began.schedule, "other intervals")
        went_on = run.trains("a", "b", beyond=run.step() + 50)
        assert went_on.incarnation == began.incarnation, "no new round"
        assert went_on.schedule.snapshot_every > began.schedule.snapshot_every
        assert ["snapshots in memory every" in node.output for node in nodes].count(True) == 1


LATE = """\
import os, sys, time
while os.environ["RANK"] == "0" and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.mark.soak
def test_a_node_that_has_finished_leaves_one_that_takes_longer_to_it(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(LATE)
    go = tmp_path / "go"
    with running(etcd_member.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2") as run:
        for name, rank in (("a", "0"), ("b", "1")):
            ranks = ("--rank-policy", "pinned", "--node-rank", rank)
            script = (str(tmp_path / "late.py"), str(go))
            run.add(name, *script, args=(*ranks, "--exit-barrier-timeout", "1"))
        assert run.nodes["b"].wait() == 0
        assert "leaves without them" in run.nodes["b"].output
        go.touch()
        assert run.nodes["a"].wait(PATIENT) == 0
        job = run.wait(lambda seen: seen.job, "the job's end").job
        assert job is not None and job.state == "succeeded"


@pytest.mark.soak
def test_a_node_that_does_not_match_is_refused_in_one_line(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    with running(etcd_member.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2") as run:
        pinned = ("--rank-policy", "pinned", "--node-rank", "1")
        run.add("a", args=pinned)
        run.wait(lambda seen: "a" in seen.nodes, "a is there")
        others = {
            "again": (pinned, "--node-rank 1, but node a of this run has it too"),
            "three": ((*pinned, "--nnodes", "3"), "node a of this run: --nnodes 3 here, 2 there"),
        }
        for name, (args, _) in others.items():
            run.add(name, args=args)
        for name, (_, told) in others.items():
            assert run.nodes[name].wait() == 2
            (line,) = run.nodes[name].output.strip().splitlines()[-1:]
            assert f"node {name} " in line and told in line
        run.add("b", args=(*pinned[:2], "--node-rank", "0"))
        members = run.trains("a", "b").members
        assert [m.node for m in members] == ["b", "a"]


def launch(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spotelastic", "run", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )


def test_standalone_needs_nothing_else_and_continues_where_it_ended(tmp_path: Path) -> None:
    done = launch("--standalone", str(SCRIPT), "30", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    more = launch("--standalone", str(SCRIPT), "40", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert resumed_steps(more.stdout) == [30]
    ends = [each.stderr.splitlines()[-1] for each in (done, more)]
    its = SCRIPT.name.removesuffix(".py")
    assert ends == [
        f"[spotelastic] the job succeeded; the newest checkpoint is step {step} in ./runs/{its}"
        for step in (30, 40)
    ]
    ids = re.findall(r"run id: (\w+)", done.stdout + more.stdout)
    assert len(ids) == 2 and len(set(ids)) == 1


BROKEN = """\
def go():
    raise ValueError("no such column")

"""
ASKS = """\
import os
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.transfers import Peer
from spotelastic_checkpoints.protocol.agent_client import DaemonClient

try:
    Peer(DaemonClient(os.environ["SPOTELASTIC_DAEMON"]).status().listen, PeerCredentials())
except RestoreFailed as refused:
    print("refused:", refused, flush=True)
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A run of a node alone, whose script asks for its state as another user, and then raises."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken.py").write_text(BROKEN + ASKS + "go()\n")
    return launch("--standalone", "--max-restarts", "1", "broken.py", cwd=folder)


def test_no_other_user_of_the_machine_reads_the_state_of_a_node_alone(
    broken: subprocess.CompletedProcess[str],
) -> None:
    assert re.search(r"refused: .*is the token the same", broken.stdout), broken.stderr


def test_a_script_that_raises_ends_the_job_with_its_traceback(
    broken: subprocess.CompletedProcess[str],
) -> None:
    assert broken.returncode == 1
    assert "ValueError: no such column" in broken.stderr
    assert "line 2, in go" in broken.stderr and "rank-0.log" in broken.stderr
    assert broken.stderr.splitlines()[-1] == "[spotelastic] no checkpoint was saved"


DIFFERS = """\
import torch
import spotelastic as se

torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
entered = 0
with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    for step in checkpoint.steps(4):
        with step:
            entered += 1  # which no save has
            optimizer.param_groups[0]["lr"] = 0.1 / entered
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        if step.finished:
            print("finished", step.number, flush=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize("how", ["strict", "auto", "off"])
def test_a_step_that_differs_when_it_is_made_again_is_told_a_line_for_each(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "differs.py").write_text(DIFFERS)
    done = launch("--standalone", "--rehearse", how, "differs.py", cwd=tmp_path)
    heading = "[spotelastic] step 2 was made twice on 1 rank, and differs:"
    assert (heading in done.stderr.splitlines()) is (how != "off"), done.stderr
    assert done.returncode == (how == "strict")
    steps = re.findall(r"finished (\d)", done.stdout)
    assert steps == (["1"] if how == "strict" else ["1", "2", "3", "4"])
    if how == "auto":
        lines = done.stderr.splitlines()
        cause, first = lines[lines.index(heading) + 1 :][:2]
        assert cause == "  entered (int) changes in the block, and is not in the state;"
        assert first.startswith("  optimizer.param_groups.0.lr is 0.0")
        assert any(line.startswith("  So interruptions change") for line in lines)


FREEZES = """\
import os, signal
import torch, torch.distributed as dist
from torch import nn
import spotelastic as se
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    for step in checkpoint.steps(12):
        with step:
            optimizer.zero_grad()
            step.loss = model(torch.randn(8, 4)).square().mean()
            step.loss.backward()
            optimizer.step()
            if step.number == 4:
                net[1].eval()
        if step.number == 8 and dist.get_rank() == 0 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    print("trains", dist.get_rank(), *(each.training for each in net), flush=True)
    print("last", dist.get_rank(), checkpoint.loss.item(), flush=True)
"""


def test_a_layer_in_eval_mode_is_in_it_after_a_worker_was_killed(tmp_path: Path) -> None:
    """Both workers are new processes then, in which the script puts none into eval mode."""
    (tmp_path / "freezes.py").write_text(FREEZES)
    two = ("--standalone", "--nproc-per-node", "2", "--snapshot-every", "1")
    done = launch(*two, "freezes.py", cwd=tmp_path)
    assert done.returncode == 0 and "ended by SIGKILL" in done.stderr, done.stderr
    told = sorted(re.findall(r"trains (\d) (.+)", done.stdout))
    assert told == [("0", "True False True"), ("1", "True False True")]
    again = launch(*two, "freezes.py", cwd=tmp_path)
    losses = [sorted(re.findall(r"last (\d .+)", each.stdout)) for each in (done, again)]
    assert losses[0] == losses[1], "each rank tells the loss of a step that was made before"
    assert len({each.split()[1] for each in losses[0]}) == 2, "not the same one"


RECORDED = """\
import os, threading
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no such column")
    threading.Event().wait()

main()
"""


@pytest.mark.soak
def test_every_node_names_the_rank_that_failed_first(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    script = tmp_path / "recorded.py"
    script.write_text(RECORDED)
    with running(etcd_member.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2") as run:
        flags = ("--max-restarts", "0", "--nproc-per-node", "1")
        nodes = [run.add(name, str(script), args=flags) for name in ("a", "b")]
        assert [node.wait() for node in nodes] == [1, 1]
        for node in nodes:
            assert "first failure: rank 1 on" in node.output
            assert "ValueError: no such column" in node.output


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_node_that_is_ended_before_it_has_found_its_run_leaves_nothing(
    sig: signal.Signals, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        args = ("--rdzv-endpoint", where, "--nnodes", "2", str(SCRIPT))
        node = NodeProcess("a", args, tmp_path, env={"TMPDIR": str(tmp_path)})
        silent.accept()  # it asks, and gets no answer
        found = [*tmp_path.glob(f"{PREFIX}*"), *SHARED_MEMORY.glob(f"{PREFIX}{node.process.pid}-*")]
        node.signal(sig)
        assert node.wait() == 128 + sig
    assert len(found) == 2
    assert not any(folder.exists() for folder in found)
    assert node.output == ""
