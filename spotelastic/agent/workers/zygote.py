"""The zygote: a process that has imported torch and forks workers in milliseconds.

Started by the agent with `python -m spotelastic.agent.workers.zygote FD MODULES`. It is
single-threaded, has never touched CUDA, and holds one socket, to the agent (a SEQPACKET pair: one
JSON message per packet, with the child's output as passed descriptors). For each `fork` it forks a
child that becomes a worker or a round's store (`child.py`), and says when it has ended. It dies
with the agent, and its children with it.

    agent → {"fork": {"id", "kind", "argv", "env", "cwd", ...}}        + 1 or 2 descriptors
    zygote → {"warm": {...fingerprint}} | {"forked": {"id", "pid"}} | {"exited": {"id", "code"}}
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from typing import Any

from spotelastic.agent.workers.process import die_with_parent, name_process

PACKET = 1 << 20


def main() -> None:
    """Serve until the agent is gone. In a forked child: run what it was forked for."""
    fd, modules, agent = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    die_with_parent(agent)
    name_process("se-zygote")
    channel = socket.socket(fileno=fd)
    _send(channel, {"warm": preload(modules.split(",") if modules else [])})
    order = _serve(channel)
    if order is None:
        return
    from spotelastic.agent.workers import child

    child.run(order)


def preload(modules: list[str]) -> dict[str, Any]:
    """Import what workers will need, and say what this is. A module that fails is left to them."""
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            failed[module] = f"{type(error).__name__}: {error}"
    torch = sys.modules.get("torch")
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": getattr(torch, "__version__", ""),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None) or "",
        "gpus": _gpus(),
        "failed": failed,
        "threads": threading.active_count(),
    }


def _gpus() -> int:
    """Counted without CUDA: initialising it here would make every fork fail."""
    with contextlib.suppress(OSError):
        return sum(1 for name in os.listdir("/proc/driver/nvidia/gpus"))  # noqa: PTH208
    return 0


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Returns an order in a forked child, None when the agent is gone."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children: dict[int, str] = {}
    while True:
        readable, _, _ = select.select([channel.fileno(), wake_read], [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _report_exits(channel, children)
        if channel.fileno() not in readable:
            continue
        data, descriptors, _, _ = socket.recv_fds(channel, PACKET, 4)
        if not data:
            return None
        order: dict[str, Any] = json.loads(data)["fork"]
        order["log"], order["errors"] = descriptors[0], descriptors[-1]
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            die_with_parent(zygote)
            for descriptor in (channel.detach(), wake_read, wake_write):
                os.close(descriptor)
            return order
        for descriptor in descriptors:
            os.close(descriptor)
        children[pid] = order["id"]
        _send(channel, {"forked": {"id": order["id"], "pid": pid}})


def _report_exits(channel: socket.socket, children: dict[int, str]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in children:
            code = os.waitstatus_to_exitcode(status)
            _send(channel, {"exited": {"id": children.pop(pid), "pid": pid, "code": code}})


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.send(json.dumps(message).encode())


if __name__ == "__main__":
    main()
