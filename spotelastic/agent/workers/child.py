"""Turns a process forked by the zygote into a worker that runs the user's script, or a round store.

Where workers are not to be forked, this is the main module of a fresh interpreter. Its arguments
are the zygote's pid, and a descriptor with the order as JSON.

A worker leads a session of its own, so that the agent can end it with all its own children (data
loaders). It ends as the interpreter does after any script: threads are joined, exit functions run,
objects are finalized.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import random
import signal
import sys
import time
from typing import Any, NoReturn

from spotelastic_checkpoints import addresses
from spotelastic_checkpoints.isolated import search_path

from spotelastic import torch_names
from spotelastic.agent.workers import entries, failure, late_variables, shadows
from spotelastic.agent.workers.ports import all_addresses
from spotelastic.errors import SpotelasticError
from spotelastic.linux import FAILING, STACKS, die_with_parent, name_process

_BACKLOG = 1024
_DAEMON_WITHIN = 60.0
"""Seconds in which a daemon that has ended is there again. It answers when the files are there."""
_FREE_WITHIN = 3.0
"""Seconds in which the store of the previous round has to free a port that both use."""


def main() -> None:
    """Run in a fresh interpreter, whose session and streams are already a worker's."""
    die_with_parent(int(sys.argv[1]))
    with os.fdopen(int(sys.argv[2])) as file:
        order = json.load(file)
    order["log"], order["errors"] = 1, 2
    order["zygote"] = int(sys.argv[1])
    _become_worker(order)
    _work(order)


def run(order: dict[str, Any]) -> None:
    """Run a worker's script, and return or raise as the script does.

    A store ends when it is killed.
    """
    os.setsid()
    for name in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, FAILING):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["kind"] == "store":
        _serve_store(order)
        return
    _become_worker(order)
    _work(order)


def _become_worker(order: dict[str, Any]) -> None:
    os.dup2(order["log"], 1)
    os.dup2(order["errors"], 2)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    _draw_apart()


def _draw_apart() -> None:
    """Seeds the random generators that came with the zygote's memory.

    In a fresh interpreter those of Python, numpy and torch's CPU start from the system's entropy,
    so they do here. torch's generators for GPUs are made later, from a fixed seed in both cases.

    In a rehearsal they start from a number that is given, and differ between ranks: a script that
    seeds nothing is compared with itself, too.
    """
    given = os.environ.get("SPOTELASTIC_REHEARSAL_SEED")
    seed = None if given is None else int(given) * 1000 + int(os.environ.get("RANK", "0"))
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed)
    if "torch" in sys.modules:
        generator = sys.modules["torch"].default_generator
        generator.seed() if seed is None else generator.manual_seed(seed)


def _serve_store(order: dict[str, Any]) -> None:
    """Listen on a new port of the node's address, report the port, and serve until killed.

    The port is bound before it is published, and differs in each round, so that a worker of an old
    round can never reach a new round's keys. If the port is given, no connection is possible before
    the agent says that the workers of the old round are gone.
    """
    name_process("se-store")
    from torch.distributed import TCPStore

    if order["port"]:
        try:
            listener = all_addresses(order["port"], _FREE_WITHIN)
        except OSError as error:
            os.write(order["log"], f"{error.strerror}\n".encode())
            return
        os.write(order["log"], f"{order['port']}\n".encode())
        if not os.read(order["errors"], 1):
            return  # the round never starts
        listener.listen(_BACKLOG)
    try:
        if not order["port"]:
            listener = addresses.listen(order["host"], 0, _BACKLOG)
        port = listener.getsockname()[1]
        fd = listener.detach()
        store = TCPStore(
            order["host"], port, is_master=True, wait_for_workers=False, master_listen_fd=fd
        )
    except (OSError, RuntimeError) as error:  # the machine lacks something
        if order["port"]:
            raise  # which ends it: its port is told already
        os.write(order["log"], f"{' '.join(str(error).split())[:200]}\n".encode())
        return
    if not order["port"]:
        os.write(order["log"], f"{port}\n".encode())
    os.close(order["log"])
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            signal.pause()
    del store


def _work(order: dict[str, Any]) -> None:
    """Return, or raise to the interpreter's top level, which then ends as after any script."""
    local_rank = int(os.environ["SPOTELASTIC_LOCAL_RANK"])
    name_process(f"se-worker-{local_rank}")
    if order["stacks"]:
        _offer_stacks(order["stacks"])
    order["pid"] = os.getpid()
    try:
        if order["files_of"] >= 0:
            _await_files(order["files_of"])
        if order["numa"]:
            # Programs that it starts later inherit that.
            torch_names.bind_to_cores_of(int(os.environ["LOCAL_RANK"]), order["numa"])
        if "torch" in sys.modules or os.environ.get("SPOTELASTIC_IN_PLACE"):
            _look_at_script()
        if order["entry"] in ("script", "path", "module"):
            _as_if_started_afresh(order)
        entries.run(order["entry"], list(order["argv"]), search_path())
    except BaseException as error:
        _fail(order, error)


def _await_files(rank: int) -> None:
    """Wait until the daemon has put back the files that the script has kept on other nodes.

    Without them the script begins all the same, and the daemon says so. What they hold stays kept.
    """
    from spotelastic_checkpoints.errors import CheckpointsError
    from spotelastic_checkpoints.messages import PutBack
    from spotelastic_checkpoints.protocol.connection import Connection

    until = time.monotonic() + _DAEMON_WITHIN
    while time.monotonic() < until:
        try:
            connection = Connection.unix(os.environ["SPOTELASTIC_DAEMON"], _DAEMON_WITHIN)
            connection.receive(connection.send(PutBack(rank)), type(None), None)
            connection.close()
            return
        except CheckpointsError:
            time.sleep(0.1)


def _as_if_started_afresh(order: dict[str, Any]) -> None:
    """Undo what imports made here would change for the script.

    They would hide the script's own modules, and keep variables that the script sets from having an
    effect.
    """
    module = order["entry"] == "module"
    folder = os.getcwd() if module else entries.modules_folder(order["argv"][0])  # noqa: PTH109
    folders = shadows.before_the_library(folder, search_path())
    shadows.forget(shadows.shadowed(folders, shadows.loaded_at_the_start()))
    if "torch" in sys.modules:
        late_variables.watch(os.environ, failure.tell)


def _look_at_script() -> None:
    """Have process groups known that the script is going to make.

    It can leave them then, and live on. With `--exact`, optimizers wait for a Checkpointer.

    It may make them before it imports spotelastic. The modules are found by name: an agent knows of
    training by messages alone.
    """
    if os.environ.get("SPOTELASTIC_CONTROL"):
        importlib.import_module("spotelastic.training.in_place.watching").watch()
    if os.environ.get("SPOTELASTIC_EXACT"):
        importlib.import_module("spotelastic.training.runtime.conditions").expect_checkpointer()


def _fail(order: dict[str, Any], error: BaseException) -> NoReturn:
    """Report a failure, show it, tell the zygote, and raise what ends the interpreter."""
    if isinstance(error, SystemExit):
        code = failure.exit_code(error)
        if code:
            _report(order, *failure.told(error), code)
            failure.announce(order["zygote"])
        raise error
    code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(error, SpotelasticError):
        _report(order, f"{type(error).__name__}: {error}")
        end = SystemExit(f"spotelastic: {error}")
    else:
        message, trace = failure.told(error)
        _report(order, message, trace, code)
        end = SystemExit(1)
        failure.show(error, trace)
    failure.announce(order["zygote"])
    if isinstance(error, KeyboardInterrupt):  # it ends the process by SIGINT
        sys.excepthook = lambda *_: None
        raise error
    raise end from None


def _report(order: dict[str, Any], message: str, trace: str = "", code: int = 1) -> None:
    """Write the report, and limit the time that the process may take to end.

    Threads of a broken process group may never end.
    """
    if os.getpid() != order["pid"]:  # a process that the script has forked, and that came out here
        return
    failure.report(message, trace, code)
    faulthandler.dump_traceback_later(order["finalize"], exit=True, file=2)


def _offer_stacks(path: str) -> None:
    """Has the stacks of all threads written to the file on request.

    That works even while a collective blocks.
    """
    file = open(path, "a")  # noqa: PTH123, SIM115
    # The zygote ignores the signal, and the script must not find it so. Blocked, it ends nothing.
    signal.pthread_sigmask(signal.SIG_BLOCK, [STACKS])
    signal.signal(STACKS, signal.SIG_DFL)
    faulthandler.register(STACKS, file=file, all_threads=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(file, all_threads=True)  # where it was when a signal ended it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [STACKS])
    signal.siginterrupt(STACKS, False)  # what it interrupts is resumed
