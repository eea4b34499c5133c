# ruff: noqa: E501
"""Small scripts, each about one thing that a script may rely on, for test_conformance.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MAIN = "main.py"


@dataclass(frozen=True)
class Case:
    files: Mapping[str, str]
    command: tuple[str, ...] = (MAIN, "-x", "a b")
    """Of `python`, and of the launchers."""
    stdin: bytes = b""
    workers: int = 1
    alone: bool = True
    """Means the same under plain `python`."""
    env: Mapping[str, str] = field(default_factory=dict)
    archive: str = ""
    """The files are in an archive of this name."""
    link: str = ""
    """A symbolic link of this name leads to the script."""


SCRIPTS = {
    # How it ends
    "returns": "print('done')",
    "exit with a number": "import sys; sys.exit(3)",
    "exit with a large number": "import sys; sys.exit(2**40)",
    "exit with text": "import sys; sys.exit('why')",
    "exit with nothing, and exit functions": "import atexit, sys\natexit.register(print, 'a')\n"
    "atexit.register(print, 'b')\nsys.exit(None)",
    "an exception, and exit functions": "import atexit\natexit.register(print, 'end')\n"
    "def f(n):\n    return f(n - 1) if n else 1 / 0\nf(2)",
    "a chain of exceptions": "try:\n    {}['a']\nexcept KeyError as e:\n    raise OSError(5) from e",
    "a syntax error in what is imported": "import wrong",
    "a hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\nraise OSError",
    "SIGTERM to itself": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "SIGTERM handled": "import os, signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nos.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "SIGPIPE": "import os\nr, w = os.pipe(); os.close(r)\n"
    "try:\n    os.write(w, b'x')\nexcept BrokenPipeError:\n    print('told')",
    "_exit": "import os; f = open('out', 'w'); f.write('x'); os._exit(0)",
    "_exit with a number": "import os; os._exit(5)",
    "a crash": "import faulthandler, ctypes\nprint(faulthandler.is_enabled())\nctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "threads": "import threading, time\ndef late():\n    time.sleep(0.2); print('late')\n"
    "threading.Thread(target=late).start()\n"
    "threading.Thread(target=lambda: time.sleep(100), daemon=True).start()\nprint('main ends')",
    "an exception in a thread": "import threading\n"
    "t = threading.Thread(target=lambda: 1 / 0, name='t'); t.start(); t.join(); print('goes on')",
    "exit in a thread": "import sys, threading\n"
    "t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
    "files and finalizers": "import weakref\nf = open('out', 'w'); f.write('x')\n"
    "class A:\n    def __del__(self): print('gone')\na = A()\n"
    "b = A.__new__(type('B', (), {}));\nweakref.finalize(b, print, 'finalized')",
    "no stdout": "import sys; print('x'); sys.stdout = None; print('y')",
    "stdout closed": "import sys; print('x'); sys.stdout.close()",
    "descriptor 1 closed": "import os; print('x'); os.close(1)",
    "a program in its place": "import os; os.execvp('echo', ['echo', 'from', 'echo'])",
    "itself once more": "import os, sys\nprint(sys.argv)\nif 'AGAIN' not in os.environ:\n"
    "    os.environ['AGAIN'] = '1'\n    os.execv(sys.executable, [sys.executable, *sys.argv])",
    # Output and input
    "input": "import sys; print(sys.stdin.isatty(), repr(sys.stdin.read()))",
    "lines of input": "import sys\nfor line in sys.stdin: print(repr(line))\nprint(repr(input))",
    "much output": "for i in range(60_000): print(i, 'x' * 50)",
    "bytes of output": "import sys\nsys.stdout.buffer.write(bytes(range(32, 256)) + b'\\n')\n"
    "print('é', '\\0', '\\x1b[1mbold\\x1b[0m')",
    "a progress bar": "import sys\nfor i in range(5): print(f'\\r{i} of 4', end='')\n"
    "print(file=sys.stderr)\nprint('a\\rb\\r\\n', end='')",
    "an end without a newline": "print('no newline', end='')",
    "both streams": "import sys, os\nfor i in range(3):\n    print('out', i)\n"
    "    print('err', i, file=sys.stderr)\n    os.write(2, b'raw\\n')\nos.system('echo from a shell')",
    "a long line": "print('x' * 200_000)",
    "how streams are made": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n"
    "    print(s.name, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), "
    "type(s.buffer).__name__, s is getattr(sys, '__' + s.name.strip('<>') + '__'))",
    "warnings": "import warnings\nwarnings.warn('careful')\nwarnings.warn('old', DeprecationWarning)",
    "logging": "import logging\nprint(logging.root.handlers, logging.root.level)\nlogging.warning('before')\n"
    "logging.basicConfig(level='INFO', force=True)\nlogging.info('after')",
    # What it is
    "main": "import sys\nm = sys.modules['__main__']\nprint(m.__dict__ is globals(), sorted(globals()))\n"
    "print(__name__, __file__, __doc__, __package__, __spec__, __builtins__.__name__)\n"
    "print(sys.argv, sys.path[0], sys.orig_argv[1:])",
    "where": "import os\nprint(os.getcwd())\nimport neighbour\nfrom lib import inner",
    "pickles of main": "import pickle\nclass A: x = 1\ndata = pickle.dumps(A())\n"
    "print(data, pickle.loads(data).x)",
    "source": "import inspect\ndef f(): pass\nprint(inspect.getsource(f))",
    "the stack": "import inspect\nprint(inspect.stack()[-1].filename, len(inspect.stack()))",
    "interpreter": "import gc, sys, threading, signal, os, faulthandler, locale\n"
    "print(sys.flags, sys.warnoptions, sys._xoptions, sys.getrecursionlimit(), "
    "sys.getswitchinterval(), sys.dont_write_bytecode, sys.hexversion)\n"
    "print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)\n"
    "print(len(threading.enumerate()), threading.current_thread() is threading.main_thread(), "
    "threading.main_thread().ident == threading.get_ident())\n"
    "print(faulthandler.is_enabled(), locale.getlocale(), sys.gettrace(), sys.getprofile())\n"
    "print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, "
    "[getattr(f, '__name__', type(f)) for f in [*sys.meta_path, *sys.path_hooks]])\n"
    "for s in sorted(signal.valid_signals()): print(s, signal.getsignal(s))\n"
    "print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(0), "
    "signal.set_wakeup_fd(-1))",
    "process": "import os, resource\nprint(oct(os.umask(0o22)), os.nice(0), os.getuid(), "
    "os.getpgrp() == os.getpid(), os.sched_getaffinity(0) == set(range(os.cpu_count())))\n"
    "print(sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/task')))\n"
    "print([resource.getrlimit(r) for r in range(16)])\n"
    "status = dict(l.split(':', 1) for l in open('/proc/self/status').read().splitlines())\n"
    "print({k: status[k] for k in ('SigBlk', 'SigIgn', 'NoNewPrivs', 'Seccomp')})",
    "descriptors": "import os\nfor n in sorted(os.listdir('/proc/self/fd'), key=int):\n"
    "    try: print(n, os.readlink(f'/proc/self/fd/{n}').split(':')[0].split('[')[0])\n"
    "    except FileNotFoundError: pass",
    "a group of processes": "import os; print(os.getpgrp() == os.getsid(0) == os.getpid())",
    "what an import of torch does": "import logging, sys, warnings\n"
    "print('torch' in sys.modules, len(logging.getLogger('torch').handlers), "
    "any('torch' in str(f) for f in warnings.filters))",
    "after an import of torch": "import torch, logging, sys, warnings\n"
    "print('torch' in sys.modules, len(logging.getLogger('torch').handlers), "
    "any('torch' in str(f) for f in warnings.filters))",
    "torch at the start": "import torch, os\nprint(torch.get_default_dtype(), "
    "torch.get_num_interop_threads(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), "
    "torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, "
    "torch.distributed.is_initialized(), torch.multiprocessing.get_sharing_strategy(), "
    "torch.get_default_device(), torch.cuda.is_initialized())\n"
    "print(torch.get_num_threads() == len(os.sched_getaffinity(0)), torch.initial_seed() > 2**32)",
    "generators are not alike": "import random, torch, json, os\nimport numpy as np\n"
    "mine = [random.random(), float(np.random.rand()), float(torch.rand(1))]\n"
    "torch.manual_seed(3); random.seed(3); np.random.seed(3)\n"
    "print(torch.rand(2), random.random(), np.random.rand())\nprint(len(set(mine)))",
    # What it starts
    "fork": "import os\npid = os.fork()\nif not pid:\n    print('child'); os._exit(3)\n"
    "print(os.waitpid(pid, 0)[1] >> 8)",
    "a program": "import subprocess, sys\nprint(subprocess.run(['cat'], input='x', text=True, "
    "capture_output=True).stdout)\nsubprocess.run([sys.executable, '-c', 'import sys; print(sys.path[0])'])",
    "pools of processes": "import concurrent.futures as c, multiprocessing as m\n"
    "def f(x): return (x, __name__)\nif __name__ == '__main__':\n"
    "    print(m.get_start_method(allow_none=True), m.current_process().name)\n"
    "    for how in ('fork', 'spawn', 'forkserver'):\n"
    "        with c.ProcessPoolExecutor(2, mp_context=m.get_context(how)) as pool:\n"
    "            print(how, list(pool.map(f, range(3))))",
    "a process that is not waited for": "import multiprocessing as m, time\n"
    "def f(): time.sleep(0.3); open('late', 'w').close()\nif __name__ == '__main__':\n"
    "    m.get_context('spawn').Process(target=f).start()",
    "a daemonic process": "import multiprocessing as m, time\nif __name__ == '__main__':\n"
    "    m.get_context('fork').Process(target=time.sleep, args=(100,), daemon=True).start()\n"
    "    print('ends')",
    "shared memory that is left": "from multiprocessing.shared_memory import SharedMemory\n"
    "print(SharedMemory('conformance', create=True, size=10).size)",
    **{
        f"data loaders that share by {how}": "import torch\nimport torch.multiprocessing as m\n"
        f"m.set_sharing_strategy('{how}')\n"
        "if __name__ == '__main__':\n"
        "    loader = torch.utils.data.DataLoader(torch.arange(40), batch_size=8, num_workers=2, "
        f"persistent_workers={how == 'file_system'})\n"
        "    print([int(batch.sum()) for batch in loader])"
        for how in ("file_descriptor", "file_system")
    },
    "torch's spawn": "import torch\ndef f(i, t): t[i] = i + 1\nif __name__ == '__main__':\n"
    "    t = torch.zeros(2).share_memory_()\n    torch.multiprocessing.spawn(f, (t,), nprocs=2)\n"
    "    print(t)",
    "what has detached itself": "import subprocess\n"
    "subprocess.Popen(['sh', '-c', 'sleep 5; touch late'], start_new_session=True)",
    "a variable that comes too late": "import os\nos.environ['KMP_BLOCKTIME'] = '1'\nimport torch\n"
    "print(torch.get_num_threads() > 0)",
}

NEIGHBOURS = {
    "neighbour.py": "print('neighbour', __file__, __name__)",
    "lib/__init__.py": "",
    "lib/inner.py": "print(__file__, __package__)",
    "wrong.py": "def f(:\n",
}
SHOW = "import sys, os\nprint(sys.argv, sys.path[0], __file__, __package__, __name__)\nimport neighbour\n"
GROUP = """\
import os, sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    dist.init_process_group("gloo")
    x = torch.ones(3) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    gathered = [None, None]
    dist.all_gather_object(gathered, os.environ["LOCAL_RANK"])
    # In one piece: torchrun's workers share a pipe, in which the pieces of two lines would mix.
    launched = dist.is_torchelastic_launched()
    sys.stdout.write(f"{dist.get_rank()} {x} {gathered} {launched}\\n")
    dist.barrier()
    dist.destroy_process_group()
main()
"""
VARIABLES = """\
import os, socket, sys
NAMES = "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE " \\
    "GROUP_WORLD_SIZE ROLE_WORLD_SIZE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS " \\
    "TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS MINE"
for name in NAMES.split():
    sys.stdout.write(f"{name} {os.environ.get(name)}\\n")
SET = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}
sys.stdout.write(f"{SET <= os.environ.keys()}\\n")
socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
"""

_OF_A_LAUNCHER = {"process", "a group of processes"}
ROWS = {
    "the stack": "the call stack of a script",
    "a hook": "a `sys.excepthook` that hides a failure",
    "descriptors": "standard output and standard error",
    "what an import of torch does": "before the script's first line",
    "further variables": "further variables",
    "what has detached itself": "a detached process",
    "a variable that comes too late": "a variable that the script sets too late",
}
"""What differs under `spotelastic run`, by the rows of the table in docs/how-to/from-torchrun.md."""
SHOWN = "each line on the terminal"
"""The row about output that is shown otherwise than it was written; its file is not."""
SHOWN_OTHERWISE = {
    "bytes of output",
    "a progress bar",
    "an end without a newline",
    "a long line",
    "another encoding",
}
STORAGE = "the folder `./runs`"
"""The row about what lies beside the files of every script."""

CASES: dict[str, Case] = {
    **{name: Case(
            {MAIN: text, **NEIGHBOURS}, stdin=b"some\ntext", alone=name not in _OF_A_LAUNCHER
        )
        for name, text in SCRIPTS.items()},
    "a module": Case({"pkg/mod.py": SHOW, "pkg/__init__.py": "", **NEIGHBOURS}, ("-m", "pkg.mod", "a")),
    "a package": Case({"pkg/__main__.py": SHOW, "pkg/__init__.py": "", **NEIGHBOURS}, ("-m", "pkg")),
    "a module with a dash": Case({"my-tool.py": SHOW, **NEIGHBOURS}, ("-m", "my-tool", "--help")),
    "a folder": Case({"f/__main__.py": SHOW, "f/neighbour.py": "print(__file__)"}, ("f", "a")),
    "an archive": Case({"__main__.py": SHOW, **NEIGHBOURS}, ("x.zip", "a"), archive="x.zip"),
    "a link": Case({"real/main.py": SHOW, "real/neighbour.py": ""}, ("link.py",), link="link.py"),
    "a script below": Case({"sub/main.py": SHOW, "sub/neighbour.py": ""}, ("./sub/../sub/main.py",)),
    "no arguments": Case({MAIN: "import sys; print(sys.argv)"}, (MAIN,)),
    "strange arguments": Case(
        {MAIN: "import sys; print(sys.argv)"},
        (MAIN, "", "--", "-h", "--nnodes", "é\n", "$HOME", "*", "--standalone"),
    ),
    "flags of the interpreter": Case(
        {MAIN: SCRIPTS["interpreter"] + "\nassert False\n", **NEIGHBOURS},
        env={"PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "ignore", "PYTHONFAULTHANDLER": "1"},
    ),
    "another encoding": Case(
        {MAIN: "import sys; print(sys.stdout.encoding, sys.getfilesystemencoding()); print('é')"},
        env={"PYTHONIOENCODING": "latin-1"},
    ),
    "two workers of a group": Case({MAIN: GROUP}, workers=2, alone=False),
    "further variables": Case(
        {
            MAIN: "import os\nown = 'SPOTELASTIC_', 'GLOO_SOCKET_IFNAME', 'TORCHELASTIC_', 'TORCH_NCCL_'\n"
            "print(sorted(name for name in os.environ if name.startswith(own)))"
        },
        alone=False,
    ),
    "variables": Case({MAIN: VARIABLES}, alone=False, env={"MINE": "1"}),
    "variables of two workers": Case({MAIN: VARIABLES}, workers=2, alone=False),
    "one of two workers fails": Case(
        {MAIN: "import os, time\nif os.environ['RANK'] == '1': raise OSError('no')\ntime.sleep(100)"},
        workers=2,
        alone=False,
    ),
}  # fmt: skip
