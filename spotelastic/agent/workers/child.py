"""What a forked child of the zygote becomes: a worker that runs the user's script, or a store.

A worker leads a session of its own, so that the agent can end it with all its own children
(data loaders); it writes what it raises to TORCHELASTIC_ERROR_FILE in torch's format.
"""

import atexit
import contextlib
import io
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import types
from typing import Any

from spotelastic.agent.workers.process import name_process


def run(order: dict[str, Any]) -> None:
    """Never returns normally: a worker ends with its script, a store when it is killed."""
    _become(order)
    if order["kind"] == "store":
        _serve_store(order)
    else:
        _run_script(order)


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    for name in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if order["kind"] == "store":
        return
    os.dup2(order["log"], 1)
    os.dup2(order["log"], 2)
    os.closerange(3, 1024)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    random.seed()


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


def _run_script(order: dict[str, Any]) -> None:
    local_rank = os.environ["LOCAL_RANK"]
    name_process(f"se-worker-{local_rank}")
    script, *args = order["argv"]
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120
    code = 0
    try:
        _run_as_main(script)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code:
            _report(f"SystemExit: {ended.code}", traceback.format_exc())
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        code = 1
        trace = _without_launcher(error)
        _report(f"{type(error).__name__}: {error}", trace)
        print(trace, end="", file=sys.stderr)
    _leave(code)


def _run_as_main(script: str) -> None:
    """Run the file as `python script` would.

    Its globals stay alive until the process has ended: where the last reference to a DDP model
    goes while the interpreter lock is held, torch waits for gloo threads that wait for that lock.
    """
    module = types.ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    with io.open_code(script) as file:
        code = compile(file.read(), script, "exec")
    exec(code, module.__dict__)


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
    while frames and frames.tb_next and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _report(message: str, trace: str) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": trace, "timestamp": str(time.time())}
    with contextlib.suppress(OSError), open(path, "w") as file:  # noqa: PTH123
        json.dump({"message": {"message": message, "extraInfo": extra}}, file)
