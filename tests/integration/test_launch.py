"""`spotelastic.launch`: functions in real workers."""

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.processes.patience import PATIENT

import spotelastic
from spotelastic.agent.workers import function
from spotelastic.errors import JobFailed, UsageError, WorkerFailed


def add_ranks(offset: int, *, scale: int) -> tuple[int, int]:
    """What all ranks compute together, and the own rank."""
    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank() + offset)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total) * scale, int(os.environ["LOCAL_RANK"])


def fail_on_1() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("no such column")
    threading.Event().wait()


def test_results_come_back_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = spotelastic.launch(add_ranks, (10,), {"scale": 2}, nproc_per_node=2)
    assert results == {0: (42, 0), 1: (42, 1)}


@pytest.mark.soak
def test_the_first_failure_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkerFailed) as raised:
        spotelastic.launch(
            fail_on_1, nproc_per_node=2, max_restarts=0, node_id="n", log_dir=tmp_path / "logs"
        )
    failed = raised.value
    assert (failed.node, failed.rank) == ("n", 1)
    assert failed.message == "ValueError: no such column"
    assert "in fail_on_1" in failed.traceback and "in fail_on_1" in str(failed)
    assert "in fail_on_1" in Path(failed.log).read_text()


PROGRAM = """\
import spotelastic

def double(value):
    return value * 2

print("loaded as", __name__)
if __name__ == "__main__":
    print(spotelastic.launch(double, (21,), no_warm=True))
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )


@pytest.mark.soak
def test_a_function_of_the_script_itself_is_found(tmp_path: Path) -> None:
    done = run(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == ["loaded as __main__", "[0] loaded as __mp_main__", "{0: 42}"]


@pytest.mark.soak
def test_a_script_that_launches_whenever_it_is_loaded_is_told_so(tmp_path: Path) -> None:
    told = PROGRAM.replace('if __name__ == "__main__":', "if True:")
    told = told.replace("no_warm=True", "max_restarts=0")
    done = run(told, tmp_path)
    assert done.returncode == 1
    assert 'below `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def end_in_some_way() -> int:
    if os.environ["RANK"] == "0":
        sys.exit(0)
    return 5


def leave_python() -> None:
    if os.environ["RANK"] == "1":
        os._exit(0)


@pytest.mark.soak
def test_a_function_may_end_by_itself_but_not_without_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spotelastic.launch(end_in_some_way, nproc_per_node=2) == {0: None, 1: 5}
    with pytest.raises(JobFailed, match="rank 1: ended before the function had returned"):
        spotelastic.launch(leave_python, nproc_per_node=2)


def test_what_a_worker_cannot_send_back_is_named(tmp_path: Path) -> None:
    """The job has succeeded: nothing is trained again for it."""
    told = function.result(("r", 0), (threading.Lock(), 3), "train")
    assert told.problem.startswith("train returned a tuple that cannot be sent back: cannot pickle")
    (tmp_path / "result-0").write_bytes(pickle.dumps(told))
    with pytest.raises(JobFailed, match="rank 0: train returned a tuple"):
        function.results(tmp_path, "r")
    assert function.results(tmp_path, "another round") == {}


TYPED = """\
import spotelastic

class Half:
    def __init__(self, of):
        self.of = of

def halve(value):
    return Half(value / DIVISOR)

DIVISOR = 2
result = spotelastic.launch(halve, (42,))
print(isinstance(result[0], Half), result[0].of)
"""


def typed(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As into an interpreter, where a function has no file."""
    return subprocess.run(
        [sys.executable, "-"],
        input=program,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )


@pytest.mark.soak
def test_a_function_without_a_file_travels_by_value(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    done = typed(TYPED, tmp_path)
    assert done.stdout == "True 21.0\n", done.stderr


def test_a_function_without_a_file_is_refused_where_no_package_can_send_it(tmp_path: Path) -> None:
    done = typed(f"import sys\nsys.modules['cloudpickle'] = None\n{TYPED}", tmp_path)
    last = done.stderr.splitlines()[-1]
    assert "halve cannot be sent to workers: there is no file" in last and "cloudpickle" in last


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: 1, "<lambda> cannot be sent to workers"),
        (partial(max, key=lambda pair: pair), "max cannot be sent to workers"),
        (partial(asyncio.iscoroutine, threading.Lock()), "cannot pickle '_thread.lock'"),
        ("train.py", "'train.py' is not a function"),
        (asyncio.sleep, "sleep is a coroutine"),
    ],
)
def test_what_is_no_function_that_workers_could_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: Any, told: str
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UsageError) as error:
        function.pack(tmp_path, wrong, (), {})
    assert told in str(error.value)


@pytest.mark.soak
def test_a_function_that_exists_only_in_the_program_that_launches_is_named(tmp_path: Path) -> None:
    guarded = 'if __name__ == "__main__":\n    def double(value):\n        return value * 2\n'
    told = PROGRAM.replace("def double(value):\n    return value * 2\n", guarded)
    done = run(told, tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "does not find all of double" in last and 'above `if __name__ == "__main__":`' in last


def test_what_workers_cannot_load_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    offset = 3
    with pytest.raises(UsageError, match="top level of a module"):
        spotelastic.launch(lambda: offset)
    without = "import sys; sys.modules['cloudpickle'] = None\n"
    code = f"{without}import spotelastic\ndef f(): pass\nspotelastic.launch(f)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENT, check=False
    )
    assert "define it in a module" in done.stderr.splitlines()[-1]


def test_wrong_keywords_and_threads_are_named() -> None:
    with pytest.raises(UsageError, match="nodes is not a flag"):
        spotelastic.launch(add_ranks, nodes=2)
    with pytest.raises(UsageError, match="--nnodes 4:2"):
        spotelastic.launch(fail_on_1, nnodes="4:2")
    told: list[Exception] = []

    def elsewhere() -> None:
        try:
            spotelastic.launch(fail_on_1)
        except UsageError as error:
            told.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "on the main thread" in str(told[0])


def test_the_name_is_there_without_torch() -> None:
    code = "import spotelastic, sys; spotelastic.launch; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENT, check=True
    )
    assert done.stdout == "False\n"
