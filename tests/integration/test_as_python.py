"""The same small scripts under `python` and as real workers: code, output, files are the same."""

# ruff: noqa: E501

import os
import queue
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.patience import PATIENT

from spotelastic.agent.state.events import Exited, WorkerFailing
from spotelastic.agent.workers.pool import (
    PoolEvent,
    StartOrder,
    Warm,
    Zygote,
)
from spotelastic.agent.workers.zygote import ZygotePlan
from spotelastic.linux import mark

SCRIPTS = {
    "a file that is never closed": "f = open('out', 'w'); f.write('x')",
    "a finalizer": "class A:\n    def __del__(self): print('gone')\na = A()",
    "exit functions after an exception": "import atexit\natexit.register(print, 'end')\nraise ValueError('no')",
    "a hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, file=sys.stderr)\n"
    "raise ValueError",
    "a hook that raises": "import sys\ndef hook(*a): raise KeyError('in hook')\n"
    "sys.excepthook = hook\nraise ValueError('first')",
    "stdout closed": "import sys; print('x'); sys.stdout.close()",
    "no stdout": "import sys; sys.stdout = None",
    "a thread at the end": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "exit with text": "import sys; sys.exit('text')",
    "exit with a number": "import sys; sys.exit(7)",
    "exit with a large number": "import sys; sys.exit(2**40)",
    "exit with nothing": "import sys; sys.exit()",
    "exit with false": "import sys; sys.exit(False)",
    "exit with an object": "import sys; sys.exit([1])",
    "interrupted": "raise KeyboardInterrupt",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "a chain": "try:\n    1 / 0\nexcept ArithmeticError as e:\n    raise ValueError('second') from e",
    "a deep failure": "def f(n):\n    return f(n - 1) if n else 1 / 0\nf(3)",
    "no module": "import no_such_module",
    "a group": "raise ExceptionGroup('some', [ValueError(1)])",
    "what is text to an exception": "class E(Exception):\n    def __str__(self): raise TypeError\nraise E",
    "main": "print(*(f'{k}={globals()[k]!r}' for k in sorted(globals()) if k not in "
    "('__loader__', '__builtins__')), __builtins__.__name__, type(__loader__).__name__)",
    "a class of main": "import pickle\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x)",
    "source": "import inspect\ndef f(): pass\nprint(inspect.getsource(f))",
    "spawn": "import multiprocessing as m\ndef f(q): q.put(__name__)\n"
    "if __name__ == '__main__':\n    c = m.get_context('spawn')\n    q = c.SimpleQueue()\n"
    "    p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join()",
    "arguments": "import sys; print(sys.argv, sys.path[0])",
    "input": "import sys; print(repr(sys.stdin.read()))",
    "a neighbour": "import neighbour",
    "a warning": "import warnings\nwarnings.warn('careful')",
    "variables that torch reads at its import": "import os\nos.environ |= {'OMP_NUM_THREADS': '1', "
    "'TORCH_ALLOW_TF32_CUBLAS_OVERRIDE': '1', 'TORCH_LOGS': 'dynamo', 'TORCH_DISTRIBUTED_DEBUG': 'INFO'}\n"
    "from torch import backends, distributed, get_num_threads\nimport logging\n"
    "print(get_num_threads(), backends.cuda.matmul.allow_tf32, distributed.get_debug_level(), "
    "logging.getLogger('torch._dynamo').level)\n"
    "os.environ['OMP_NUM_THREADS'] = '2'\nimport torch\nprint(torch.get_num_threads(), type(torch.__spec__).__name__)",
    "flags": "import sys; print(sys.flags.safe_path, sys.flags.optimize, sys.warnoptions)",
}
SAME_BUT_FOR_OUTPUT = {
    "stderr replaced": "import io, sys\nsys.stderr = io.StringIO()\nraise ValueError('unseen')",
    "print replaced": "import builtins\nbuiltins.print = lambda *a, **k: None\nraise ValueError('unseen')",
    "a silent hook": "import sys\nsys.excepthook = lambda *a: None\nraise ValueError('unseen')",
}


class Workers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, **mark(folder)}
        self._events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        plan = ZygotePlan(os.getpid(), str(folder), base=("torch.distributed",))
        self.zygote = Zygote(plan, self.env, mark(folder), self._events.put)
        warm = self._events.get(timeout=PATIENT)
        assert isinstance(warm, Warm)
        self.info = warm.info

    def run(self, entry: str, *argv: str, cwd: Path) -> tuple[int, str, str]:
        env = {**self.env, "SPOTELASTIC_LOCAL_RANK": "0"}
        order = StartOrder(str(cwd), "worker", argv, env, str(cwd), entry=entry)
        out, err = cwd.parent / "stdout", cwd.parent / "stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            self.zygote.start(order, stdout.fileno(), stderr.fileno())
        while True:
            event = self._events.get(timeout=PATIENT)
            if isinstance(event, WorkerFailing):
                continue
            assert isinstance(event, Exited)
            if event.gone:
                return event.code, out.read_text(), err.read_text()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("zygote")
    (folder / "signal.py").write_text("raise SystemExit('a file of the user was imported')")
    before = Path.cwd()
    os.chdir(folder)
    try:
        made = Workers(folder / "scripts")
    finally:
        os.chdir(before)
    yield made
    made.zygote.close()


def python(*args: str, cwd: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-u", *args], cwd=cwd, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False, timeout=PATIENT,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_and_ends_as_under_python(
    name: str, workers: Workers, tmp_path: Path
) -> None:
    found = []
    cwd = tmp_path / "cwd"
    for run in (python, lambda *args, cwd: workers.run("script", *args, cwd=cwd)):
        cwd.mkdir()
        (cwd / "script.py").write_text(SCRIPTS[name])
        (cwd / "neighbour.py").write_text("print(__name__)")
        code, out, err = run(str(cwd / "script.py"), "-x", cwd=cwd)
        files = {f.name: f.read_text() for f in cwd.iterdir() if f.is_file()}
        found.append((code, out, err, files))
        cwd.rename(tmp_path / f"done-{len(found)}")
    assert found[1] == found[0]


@pytest.mark.parametrize("name", SAME_BUT_FOR_OUTPUT)
def test_a_traceback_is_shown_whatever_the_script_has_replaced(
    name: str, workers: Workers, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SAME_BUT_FOR_OUTPUT[name])
    code, _, err = workers.run("script", str(tmp_path / "script.py"), cwd=tmp_path)
    assert code == 1
    assert err.count("ValueError: unseen") == 1 and "spotelastic" not in err


def test_a_line_names_variables_that_come_too_late(workers: Workers, tmp_path: Path) -> None:
    text = "import os\nos.environ |= {'KMP_BLOCKTIME': '0', 'MINE': '1', 'PYTORCH_ALLOC_CONF': 'backend:x'}\n"
    text += "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'a:b'\nimport torch.nn\nimport torch"
    (tmp_path / "script.py").write_text(text)
    code, _, err = workers.run("script", str(tmp_path / "script.py"), cwd=tmp_path)
    assert code == 0 and err.count("KMP_BLOCKTIME, PYTORCH_ALLOC_CONF: set by the script") == 1, err
    assert "--no-warm" in err and "MINE" not in err


@pytest.mark.soak
def test_a_script_gets_its_own_modules_where_torch_has_imported_others_of_their_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "numbers").mkdir()  # a folder without __init__.py stands in nobody's way
    for name in ("queue", "random", "enum", "notes"):
        (tmp_path / f"{name}.py").write_text("print(__file__)\nclass Enum: pass\n")
    show = "import queue, random, enum, numbers, notes\nprint(enum, random.__name__, numbers)"
    (tmp_path / "script.py").write_text(show)
    made = Workers(tmp_path)
    try:
        named = {name: str(tmp_path / f"{name}.py") for name in ("queue", "random", "enum")}
        assert named.items() <= made.info["shadowed"].items()
        assert not {"notes", "numbers"} & made.info["shadowed"].keys()
        script = str(tmp_path / "script.py")
        assert made.run("script", script, cwd=tmp_path) == python(script, cwd=tmp_path)
    finally:
        made.zygote.close()


def test_links_folders_archives_and_modules_are_run_as_by_python(
    workers: Workers, tmp_path: Path
) -> None:
    show = "import sys, neighbour\nprint(sys.argv, sys.path[0], __file__, __package__, __name__)\n"
    for folder in ("real", "link", "folder"):
        (tmp_path / folder).mkdir()
    for name in ("real/train.py", "folder/__main__.py", "dash-mod.py"):
        (tmp_path / name).write_text(show)
        (tmp_path / name).with_name("neighbour.py").touch()
    (tmp_path / "link" / "train.py").symlink_to("../real/train.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", show)
        archive.writestr("neighbour.py", "")
    for script in (
        "link/train.py",
        "./link/../link/train.py",
        "folder",
        "./folder/",
        "archive.zip",
    ):
        mine = workers.run("script", script, "a", cwd=tmp_path)
        assert mine == python(script, "a", cwd=tmp_path), script
        assert mine[0] == 0, mine
    mine = workers.run("module", "dash-mod", "a", cwd=tmp_path)
    assert mine == python("-m", "dash-mod", "a", cwd=tmp_path)
    assert mine[0] == 0, mine
