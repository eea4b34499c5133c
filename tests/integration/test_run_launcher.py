"""`spotelastic run` used as other launchers are: modules, programs, streams, no etcd at hand."""

import contextlib
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.processes.patience import PATIENT
from support.processes.ports import held_ports
from support.processes.run_launcher import SCRIPT, resumed_steps
from support.store.certificates import certificates

from spotelastic.errors import UsageError
from spotelastic.launcher import etcd_bootstrap
from spotelastic.launcher.rendezvous_config import RendezvousConfig
from spotelastic.store.etcd_server.process import standalone

SHOW = """\
import os, sys
print("first", __name__, sys.argv[1:], os.environ["ROLE_NAME"])
print("loss 0.5")
print("warning of", os.environ["LOCAL_RANK"], file=sys.stderr)
print("variables", *sorted(os.environ))
"""
VARIABLES = """\
RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME
WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT
TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID
TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE TORCHELASTIC_SIGNALS_TO_HANDLE
TORCH_NCCL_ASYNC_ERROR_HANDLING
"""
REDUCE = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), os.environ["MASTER_ADDR"], flush=True)
"""


def start(args: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spotelastic.run", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENT)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def launch(*args: str, cwd: Path) -> tuple[int, str, str]:
    return finish(start(args, cwd))


@pytest.mark.soak
def test_a_module_with_its_streams_told_apart(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "tool.py").write_text(SHOW)
    (tmp_path / "package" / "__init__.py").touch()
    flags = ("--standalone", "--nproc_per_node=2", "--role", "trainer", "--log-dir", "logs")
    routes = ("-t", "0:3,1:1", "-r", "1:2", "--duplicate-stdout-filters", "loss")
    code, out, err = launch(
        *flags, *routes, "--node-id", "n", "-m", "package.tool", "a", "-t", cwd=tmp_path
    )
    assert code == 0, err
    said = [f"[trainer{rank}]:first __main__ ['a', '-t'] trainer" for rank in (0, 1)]
    assert set(said) <= set(out.splitlines()) and "warning" not in out
    assert "[trainer0]:warning of 0" in err.splitlines() and "warning of 1" not in err
    folder = tmp_path / "logs" / "n" / "logs" / "0001"
    assert (folder / "rank-1.stderr.log").read_text() == "warning of 1\n"
    assert "loss 0.5\n" in (folder / "rank-1.stdout.log").read_text()
    matches = (folder / "filtered_stdout.log").read_text().splitlines()
    assert sorted(matches) == ["[0] loss 0.5", "[1] loss 0.5"]


@pytest.mark.soak
def test_a_program_that_is_not_python_and_its_failure(tmp_path: Path) -> None:
    shell = 'echo "$0 of $WORLD_SIZE at $LOCAL_RANK"; exit $((LOCAL_RANK * 3))'
    flags = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "0")
    code, out, err = launch(
        *flags, "--local-ranks-filter", "1", "--no-python", "sh", "-c", shell, "${local_rank}",
        cwd=tmp_path,
    )  # fmt: skip
    assert code == 1
    assert out.splitlines() == ["[1] 1 of 2 at 1"]
    assert "first failure: rank 1" in err and "ended with exit code 3" in err
    (log,) = re.findall(r"first failure: .*, (\S+)", err)
    assert Path(log).read_text() == "1 of 2 at 1\n", "the log of a failure is kept"
    shutil.rmtree(Path(log).parents[1])


@pytest.mark.soak
def test_a_path_is_run_as_runpy_does_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(SHOW)
    flags = ("--standalone", "--allow-uncommitted", "--run-path")
    code, out, err = launch(*flags, "folder", "x", cwd=tmp_path)
    assert code == 0, err
    assert "[0] first __main__ ['x'] default" in out.splitlines()
    (told,) = [line.split()[2:] for line in out.splitlines() if "variables" in line]
    assert set(VARIABLES.split()) <= set(told), "each variable that torchrun sets"
    assert "SPOTELASTIC_ALLOW_UNCOMMITTED" in told


@pytest.mark.soak
def test_workers_that_all_have_local_rank_0_keep_their_checkpoints_apart(tmp_path: Path) -> None:
    flags = ("--standalone", "--nproc-per-node", "2", "--virtual-local-rank")
    code, out, err = launch(*flags, str(SCRIPT), "20", cwd=tmp_path)
    assert code == 0, err
    assert resumed_steps(out) == [0, 0]
    assert (tmp_path / "runs" / SCRIPT.stem / "LATEST").is_file()


@pytest.mark.soak
def test_training_goes_on_when_nobody_reads_what_is_printed(tmp_path: Path) -> None:
    lines = "for _ in range(20_000):\n    print('x' * 50)\nopen('done', 'w').close()\n"
    (tmp_path / "talk.py").write_text(lines)
    folder = "d" * 110  # longer than the path of a socket may be
    process = start(["--standalone", "--log-dir", folder, "--node-id", "n", "talk.py"], tmp_path)
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        process.stdout.readline()
    assert process.wait(PATIENT) == 0
    assert (tmp_path / "done").exists()
    log = tmp_path / folder / "n" / "logs" / "0001" / "rank-0.log"
    assert len(log.read_text().splitlines()) == 20_000


@pytest.mark.soak
def test_a_debugger_is_spoken_with_at_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("answer = 6 * 7\nbreakpoint()\nprint('on')\n")
    command = [sys.executable, "-m", "spotelastic.run", "--standalone", "script.py"]
    terminal, other = pty.openpty()
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=other, stdout=other, stderr=other, start_new_session=True
    )
    os.close(other)
    try:
        output = b""
        for prompt, said in ((b"(Pdb) ", b"p answer\n"), (b"[0] 42", b""), (b"(Pdb) ", b"c\n")):
            while prompt not in output:
                assert select.select([terminal], [], [], PATIENT)[0], output
                output += os.read(terminal, 4096)
            output = output.partition(prompt)[2]
            os.write(terminal, said)
        assert process.wait(PATIENT) == 0
        while b"[0] on" not in output:  # the kernel may hand it out in pieces
            output += os.read(terminal, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


@pytest.fixture
def port() -> Iterator[int]:
    """Where nobody listens yet."""
    with held_ports(1) as (held,):
        yield held


other = port
"""A second one."""


@pytest.mark.parametrize(
    "backend",
    [
        "embedded with TLS",
        *(pytest.param(backend, marks=pytest.mark.soak) for backend in ("c10d", "static")),
    ],
)
def test_nodes_meet_where_no_etcd_is(backend: str, port: int, other: int, tmp_path: Path) -> None:
    (tmp_path / "reduce.py").write_text(REDUCE)
    flags = ["--nnodes", "2", "--rdzv-id", "job"]
    if backend == "c10d":
        ways = [["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]] * 2
    elif backend == "embedded with TLS":
        conf = str(certificates(tmp_path / "tls"))
        way = ["--rdzv-backend", "embedded", "--rdzv-endpoint", f"https://localhost:{port}"]
        ways = [[*way, "--rdzv-conf", conf]] * 2
    else:
        way = ["--master-port", str(port), "--rdzv-conf", f"etcd_port={other}"]
        ways = [["--node-rank", str(n), *way] for n in (0, 1)]
    nodes = [start([*flags, *way, "reduce.py"], tmp_path) for way in reversed(ways)]
    ended = [finish(node) for node in nodes]
    assert [code for code, _, _ in ended] == [0, 0], ended
    said = [out.strip() for _, out, _ in ended]
    assert set(said) == {f"[{rank}] sum 2.0 127.0.0.1" for rank in (0, 1)}
    assert backend != "static" or said[0].startswith("[1]"), "of static, the node rank is the rank"


MEET = """\
import os, sys, torch, torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=world)
total = torch.ones(1)
dist.all_reduce(total)
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("sum", total.item(), os.environ["MASTER_PORT"], restarts, flush=True)
dist.barrier()  # a failure ends the peers, which have printed by then
if restarts < 2 and rank == restarts:
    sys.exit("again")
"""


@pytest.mark.soak
def test_workers_meet_at_the_port_that_was_named_and_again_after_a_failure(
    port: int, tmp_path: Path
) -> None:
    """As a script has it that names the port itself, where torchrun's store listens."""
    (tmp_path / "meet.py").write_text(MEET)
    flags = ("--standalone", "--nproc-per-node", "2", "--master-port", str(port))
    code, out, err = launch(*flags, "meet.py", f"tcp://localhost:{port}", cwd=tmp_path)
    assert code == 0, err
    told = {f"[{rank}] sum 2.0 {port} {turn}" for rank in (0, 1) for turn in (0, 1, 2)}
    assert told <= set(out.splitlines())


def test_a_master_port_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with silent_server() as silent:
        port = int(silent.rpartition(":")[2])
        asked = RendezvousConfig("alone", master_port=port)
        told = f"--master-port {port}: is in use"
        with pytest.raises(UsageError, match=told), etcd_bootstrap.meet(asked, tmp_path, print):
            pass


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_master_that_is_not_this_machine_or_whose_port_is_in_use_is_refused(
    tmp_path: Path,
) -> None:
    with silent_server() as silent:
        master = RendezvousConfig("host", (silent,), "--master-addr")
        with (
            pytest.raises(UsageError, match="port is in use"),
            etcd_bootstrap.meet(master, tmp_path, print),
        ):
            pass
    with (
        pytest.raises(UsageError, match=r"--master-addr 192\.0\.2\.7:5"),
        etcd_bootstrap.meet(
            RendezvousConfig("host", ("192.0.2.7:5",), "--master-addr"), tmp_path, print
        ),
    ):
        pass


def test_one_member_that_answers_is_enough(port: int, tmp_path: Path) -> None:
    with standalone(tmp_path) as member:
        asked = RendezvousConfig("client", (f"127.0.0.1:{port}", member.endpoint))
        with etcd_bootstrap.meet(asked, tmp_path, print) as place:
            assert place.endpoints == asked.endpoints and place.member is None


def test_the_first_of_a_machine_runs_the_etcd_and_the_next_one_finds_it(
    port: int, tmp_path: Path
) -> None:
    asked = RendezvousConfig("either", (f"localhost:{port}",))
    with (
        etcd_bootstrap.meet(asked, tmp_path / "a", print) as first,
        etcd_bootstrap.meet(asked, tmp_path / "b", print) as second,
    ):
        assert first.member is not None and second.member is None
        assert first.address == second.address == "127.0.0.1"
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
