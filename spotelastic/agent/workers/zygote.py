"""The zygote: a process that has imported torch and forks workers in milliseconds.

The agent starts it with the arguments FD and PLAN. It has a single thread, has never touched CUDA,
and holds one socket, to the agent: a SEQPACKET pair with one JSON message per packet, and a child's
output as passed descriptors. For each `start` it makes a child that becomes a worker or a round
store (`child.py`), reports its end, and ends what it left behind (`children.py`). When the agent is
gone it ends everything below it, then itself.

    agent → {"start": {"id", "kind", "argv", "env", "cwd", ...}}       + 1 or 2 descriptors
            {"end": {"ids", "signal"}}
    zygote → {"warm": {...}} | {"started": {"id", "pid"}} | {"failing": {"id", "code"}}
            {"ended": {"id", "code", "gone"}}

Workers are forked while that is safe. It is not safe once a preloaded module has left a thread or
an initialised CUDA. Then, or on request, they are fresh interpreters. Round stores, which need
torch alone, are always forked.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spotelastic_checkpoints.isolated import command, search_path

from spotelastic import linux, protection
from spotelastic.agent.workers import child, shadows
from spotelastic.agent.workers.children import Children

PACKET = 1 << 20
MODULE = "spotelastic.agent.workers.zygote"
_ORDER = 3
"""The descriptor from which a fresh interpreter reads its order."""
DRIVER = "/dev/nvidia-uvm"
"""The device that a process opens when it first uses the driver. Asking NVML does not open it."""
_SETTLE_WITHIN = 0.5
"""Seconds in which threads that a module has joined disappear."""


@dataclass(frozen=True, slots=True)
class ZygotePlan:
    """What a zygote is started for. `path` is the folder of the script's own modules."""

    agent: int
    path: str
    warm: bool = True
    base: tuple[str, ...] = ()
    """Modules that we choose, which are known to leave nothing running."""
    preload: tuple[str, ...] = ()
    """Modules that the user chooses."""
    failed: dict[str, str] = field(default_factory=dict)
    spoiled: str = ""
    """The module because of which workers are not forked, and how."""
    script: bool = True
    """Whether workers run Python, which may bring modules in place of those imported here."""
    shadowed: dict[str, str] = field(default_factory=dict)
    """Modules that the script replaces, with their files. Workers are not forked because of
    them.
    """


def main() -> None:
    """Serve until the agent is gone. In a forked child: runs what it was forked for."""
    fd, plan = int(sys.argv[1]), ZygotePlan(**json.loads(sys.argv[2]))
    linux.die_with_parent(plan.agent)
    protection.give_up()
    linux.name_process("se-zygote")
    os.set_inheritable(fd, False)
    channel = socket.socket(fileno=fd)
    failed = dict(plan.failed)
    _import_base(plan, failed)
    shadowed = _shadowed(plan)
    if shadowed:
        _start_over(fd, replace(plan, warm=False, failed=failed, shadowed=shadowed))
    spoiled = _preload(plan, failed)
    if spoiled:
        _start_over(fd, replace(plan, warm=False, failed=failed, spoiled=spoiled))
    # Collections, and the end of a worker, leave alone what was imported here: shared memory stays
    # shared, and finalization takes half a second instead of two.
    gc.collect()
    gc.freeze()
    # Only now: a node joins a round as soon as it hears this, and running workers wait for it.
    _send(channel, {"warm": _describe(failed, plan)})
    linux.adopt_orphans()
    linux.survive_parent()  # from here on its end is heard of, and ends everything
    order = _Server(channel, warm=plan.warm).serve()
    if order is None:
        os._exit(0)  # taking every module apart takes seconds
    child.run(order)


def _import_base(plan: ZygotePlan, failed: dict[str, str]) -> None:
    """Import our own choice of modules. What fails is left to the workers."""
    # Modules that only ask whether there is a GPU leave the driver alone then.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # A fifth of the time would go into looking for garbage among what stays.
    gc.disable()
    for module in plan.base:
        _import(module, failed)
    gc.enable()


def _shadowed(plan: ZygotePlan) -> dict[str, str]:
    """Return the modules imported so far that the script would find elsewhere.

    That is where it would find them in a fresh interpreter.
    """
    if not (plan.warm and plan.script):
        return {}
    folders = shadows.before_the_library(plan.path, search_path())
    return shadows.shadowed(folders, shadows.loaded_at_the_start())


def _preload(plan: ZygotePlan, failed: dict[str, str]) -> str:
    """Import what the user names.

    Returns which of these keeps this process from being forked, and why.
    """
    sys.path[:] = [plan.path, *search_path()]
    threads = _threads()
    for module in plan.preload if plan.warm else ():
        _import(module, failed)
        if has_initialised_cuda():
            return f"{module} initialised CUDA"
        if _more_threads_than(threads):
            return f"{module} left a thread running"
    return ""


def has_initialised_cuda(driver: str = DRIVER) -> bool:
    """Whether CUDA is in use here.

    torch knows of its own use alone. It does not know of a count of GPUs, nor of other libraries:
    these have opened the `driver`.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    with os.scandir("/proc/self/fd") as found:
        return any(_target(entry.path).startswith(driver) for entry in found)


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115
    except OSError:  # closed meanwhile
        return ""


def _import(module: str, failed: dict[str, str]) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        failed[module] = f"{type(error).__name__}: {error}"


def _threads() -> int:
    """Return the number of threads, in any language."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _more_threads_than(count: int) -> bool:
    deadline = time.monotonic() + _SETTLE_WITHIN
    while _threads() > count:
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.01)
    return False


def _start_over(fd: int, plan: ZygotePlan) -> None:
    """Replace this process by a new zygote without what was imported."""
    os.set_inheritable(fd, True)
    os.execv(sys.executable, command(MODULE, str(fd), json.dumps(asdict(plan))))


def _describe(failed: dict[str, str], plan: ZygotePlan) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": getattr(torch, "__version__", ""),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None) or "",
        "kernels": _kernels(torch),
        "failed": failed,
        "spoiled": plan.spoiled,
        "shadowed": plan.shadowed,
    }


def _kernels(torch: Any) -> str:
    """Return what decides the last bits besides versions; empty where torch does not tell."""
    build = getattr(getattr(torch, "version", None), "git_version", None)
    cpu = getattr(getattr(torch, "backends", None), "cpu", None)
    if not build or not cpu:
        return ""
    return f"{linux.gpu_models()} / {cpu.get_cpu_capability()} / {build[:10]}"


class _Server:
    def __init__(self, channel: socket.socket, *, warm: bool) -> None:
        self._channel = channel
        self._warm = warm
        self._children = Children()
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for news in (signal.SIGCHLD, linux.FAILING):
            signal.signal(news, lambda *_: None)
        # A fresh interpreter that is asked for its stacks before it can tell them goes on.
        signal.signal(linux.STACKS, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> dict[str, Any] | None:
        """Return an order in a forked child, and None when the agent is gone."""
        while True:
            awaited = [self._channel.fileno(), self._wake]
            readable, _, _ = select.select(awaited, [], [], self._children.looks_again)
            if self._wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            if self._channel.fileno() in readable:
                data, descriptors, _, _ = socket.recv_fds(self._channel, PACKET, 4)
                if not data:
                    self._children.end_all(self._wake, linux.END_WITHIN)
                    return None
                message = json.loads(data)
                if "start" in message and self._start(message["start"], descriptors):
                    return dict(message["start"])
                if "end" in message:
                    self._children.end(message["end"]["ids"], message["end"]["signal"])
            for news in self._children.settle():
                _send(self._channel, {"ended": news})
            for failing in self._children.failing():
                _send(self._channel, {"failing": failing})

    def _start(self, order: dict[str, Any], descriptors: list[int]) -> bool:
        """Start a child. Returns True in the child that was forked."""
        order["log"], order["errors"] = descriptors[0], descriptors[-1]
        worker = order["kind"] == "worker"
        order["zygote"] = zygote = os.getpid()
        pid = _spawn(order) if worker and not self._warm else os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            linux.die_with_parent(zygote)
            for descriptor in (self._channel.detach(), self._wake, self._wake_write):
                os.close(descriptor)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        errors = order["env"].get("TORCHELASTIC_ERROR_FILE", "") if worker else ""
        self._children.add(pid, order["id"], worker=worker, errors=errors)
        _send(self._channel, {"started": {"id": order["id"], "pid": pid}})
        return False


def _spawn(order: dict[str, Any]) -> int:
    """Start a fresh interpreter, which reads its order from a descriptor."""
    memory = os.memfd_create("order")
    os.write(memory, json.dumps(order).encode())
    os.lseek(memory, 0, os.SEEK_SET)
    try:
        return os.posix_spawn(
            sys.executable,
            command("spotelastic.agent.workers.child", str(os.getpid()), str(_ORDER)),
            order["env"],
            file_actions=[
                (os.POSIX_SPAWN_DUP2, order["log"], 1),
                (os.POSIX_SPAWN_DUP2, order["errors"], 2),
                (os.POSIX_SPAWN_DUP2, memory, _ORDER),
            ],
            setsid=True,
        )
    finally:
        os.close(memory)


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.send(json.dumps(message).encode())
