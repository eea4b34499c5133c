"""What a child of the zygote becomes: a worker that runs the user's script, or a store.

Forked from the zygote, or a fresh interpreter (`python -m spotelastic.agent.workers.child ZYGOTE`,
the order as JSON on standard input) where workers are not to be forked.

A worker leads a session of its own, so that the agent can end it with all its own children
(data loaders); it writes what it raises to TORCHELASTIC_ERROR_FILE in torch's format.
"""

import atexit
import contextlib
import faulthandler
import io
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
import types
from pathlib import Path
from typing import Any

from spotelastic.errors import SpotelasticError
from spotelastic.linux import STACKS, die_with_parent, name_process


def main() -> None:
    """A fresh interpreter: its session and its streams are a worker's already."""
    die_with_parent(int(sys.argv[1]))
    order = json.load(sys.stdin)
    order["log"], order["errors"] = 1, 2
    _become_worker(order)
    _work(order)


def run(order: dict[str, Any]) -> None:
    """Never returns normally: a worker ends with its script, a store when it is killed."""
    os.setsid()
    for name in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["kind"] == "store":
        _serve_store(order)
    _become_worker(order)
    _work(order)


def _become_worker(order: dict[str, Any]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(order["log"], 1)
    os.dup2(order["errors"], 2)
    os.closerange(3, 1024)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    _draw_apart()


def _draw_apart() -> None:
    """Give generators that came with the zygote's memory seeds of this process's own.

    As in a fresh interpreter, where those of Python, numpy and torch's CPU start from the
    system's entropy. torch's for GPUs are made later, from a fixed seed, in both.
    """
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _serve_store(order: dict[str, Any]) -> None:
    """Listen on a new port of the node's address, say which, and serve until killed.

    The port is bound before anybody hears of it, and new in every round, so that a worker of an
    old round can never reach a new round's keys.
    """
    name_process("se-store")
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.create_server((order["host"], 0), backlog=1024)
    port = listener.getsockname()[1]
    fd = listener.detach()
    store = TCPStore(
        order["host"], port, is_master=True, wait_for_workers=False, master_listen_fd=fd
    )
    os.write(order["log"], f"{port}\n".encode())
    os.close(order["log"])
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            signal.pause()
    del store


def _work(order: dict[str, Any]) -> None:
    local_rank = int(os.environ["SPOTELASTIC_LOCAL_RANK"])
    name_process(f"se-worker-{local_rank}")
    sys.argv = list(order["argv"])
    code = 0
    if order["stacks"]:
        _offer_stacks(order["stacks"])
    try:
        if order["numa"]:
            _bind(order["numa"], int(os.environ["LOCAL_RANK"]))
        _ENTRIES[order["entry"]](sys.argv[0])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code:
            _report(f"SystemExit: {ended.code}", traceback.format_exc())
            print(ended.code, file=sys.stderr)
    except SpotelasticError as error:
        code = 1
        _report(str(error), "")
        print(f"spotelastic: {error}", file=sys.stderr)
    except BaseException as error:
        code = 1
        trace = _without_launcher(error)
        _report(f"{type(error).__name__}: {error}", trace)
        print(trace, end="", file=sys.stderr)
    _leave(code)


def _offer_stacks(path: str) -> None:
    """Write the stacks of all threads there when asked to, also while a collective blocks."""
    file = open(path, "a")  # noqa: PTH123, SIM115
    faulthandler.register(STACKS, file=file, all_threads=True)


# What runs a worker's code keeps its globals alive until the process has ended: where the last
# reference to a DDP model goes while the interpreter lock is held, torch waits for gloo threads
# that wait for that lock.


def _run_script(script: str) -> None:
    """As `python script` does."""
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120
    main = _new_main()
    main.__file__ = script
    with io.open_code(script) as file:
        code = compile(file.read(), script, "exec")
    exec(code, main.__dict__)


def _run_module(name: str) -> None:
    """As `python -m name` does."""
    sys.path[0] = os.getcwd()  # noqa: PTH109
    _new_main()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_path(path: str) -> None:
    """As torchrun's --run-path does: also a folder or an archive with a `__main__.py`."""
    _kept.append(runpy.run_path(path, run_name="__main__"))


def _execute(program: str) -> None:
    """The program takes this process's place."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(program, sys.argv)
    except OSError as error:
        raise SystemExit(f"cannot run {program}: {error.strerror}") from error


def _call_function(file: str) -> None:
    """As multiprocessing calls one in a process that it has spawned."""
    from spotelastic.agent.workers import function

    function.call(Path(file))


_ENTRIES = {
    "script": _run_script,
    "module": _run_module,
    "path": _run_path,
    "program": _execute,
    "function": _call_function,
}
_kept: list[dict[str, Any]] = []


def _new_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    return main


def _bind(mode: str, gpu: int) -> None:
    """Onto the cores near the GPU, by torch's own rules; a program started later inherits it."""
    from torch.numa import binding

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    binding._maybe_apply_numa_binding_to_current_process(gpu_index=gpu, numa_options=options)


def _leave(code: int) -> None:
    """End as the interpreter does, but for taking every module apart.

    That touches, and so copies, all the memory shared with the zygote, and took 1 to 2.5 s. After
    a failure nothing is waited for: threads of a broken process group may never end.
    """
    if code == 0:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _without_launcher(error: BaseException) -> str:
    """The traceback from the user's script on, without the frames that started it."""
    frames = error.__traceback__
    launcher = (__file__, runpy.__file__, "<frozen runpy>")
    while frames and frames.tb_next and frames.tb_frame.f_code.co_filename in launcher:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _report(message: str, trace: str) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": trace, "timestamp": str(time.time())}
    with contextlib.suppress(OSError), open(path, "w") as file:  # noqa: PTH123
        json.dump({"message": {"message": message, "extraInfo": extra}}, file)


if __name__ == "__main__":
    main()
