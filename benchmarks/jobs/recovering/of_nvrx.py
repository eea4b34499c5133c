"""The job in the in-process wrapper of NVIDIA's resiliency extension.

The wrapper calls a function again in the same process. What takes long is built once, outside of
it, which is the best that a script can do: the group and DDP are made anew in it, and the state is
taken from a copy in memory. Its own `Abort` asks for NCCL, so one for gloo is given here. Its times
are set as low as those of the other systems.
"""

import contextlib
import copy
import os
import socket
import stat
from datetime import timedelta
from pathlib import Path

import work

options = work.options()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from nvidia_resiliency_ext import inprocess  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

PORT = int(os.environ["MASTER_PORT"])
COPIES = 2
OFTEN, SELDOM = timedelta(seconds=0.1), timedelta(seconds=0.25)
LOST_AFTER = timedelta(seconds=2)
"""A rank that says nothing is lost after that: the lease of spotelastic's nodes."""

plain, optimizer = work.build(options.build, compiles=options.compile)
copies: dict[int, tuple] = {}
"""The last copies of the state, by step. All ranks have the same."""
connections: set[int] = set()
"""Descriptors of the group's sockets."""


def sockets() -> set[int]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                found.add(int(entry.name))
    return found


class AbortGloo(inprocess.abort.Abort):
    """Shuts the group's connections down, so that whoever waits in a collective gets an error."""

    def __call__(self, state):
        for fd in connections:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as same:
                if not same.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    same.shutdown(socket.SHUT_RDWR)
        return state


class LeaveGroup(inprocess.finalize.Finalize):
    def __call__(self, state):
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        return state


def keep(step: int) -> None:
    copies[step] = copy.deepcopy((plain.state_dict(), optimizer.state_dict()))
    for old in sorted(copies)[:-COPIES]:
        del copies[old]


def go_back() -> int:
    """Take the newest copy that all ranks have, and return its step."""
    newest = torch.tensor([max(copies)])
    dist.all_reduce(newest, dist.ReduceOp.MIN)
    step = int(newest)
    model, moments = copy.deepcopy(copies[step])
    plain.load_state_dict(model)
    optimizer.load_state_dict(moments)
    return step


def train(call: inprocess.CallWrapper = None) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    before = sockets()
    store = dist.TCPStore(
        "127.0.0.1",
        PORT + 1 + call.iteration,
        world,
        is_master=rank == 0,
        timeout=timedelta(seconds=30),
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    dist.all_reduce(torch.ones(1))
    connections.clear()
    connections.update(sockets() - before)
    model = DistributedDataParallel(plain)
    step = go_back()
    while True:
        work.train(model, optimizer, options.pause)
        step += 1
        call.ping()
        work.tell("step", world, step, str(call.iteration))
        if step % work.EVERY == 0:
            keep(step)


keep(0)
inprocess.Wrapper(
    store_kwargs={"port": PORT, "timeout": timedelta(seconds=30)},
    abort=AbortGloo(),
    finalize=LeaveGroup(),
    health_check=None,
    monitor_thread_interval=OFTEN,
    monitor_process_interval=OFTEN,
    progress_watchdog_interval=OFTEN,
    heartbeat_interval=SELDOM,
    heartbeat_timeout=LOST_AFTER,
    soft_timeout=timedelta(seconds=20),
    hard_timeout=timedelta(seconds=30),
    barrier_timeout=timedelta(seconds=60),
    completion_timeout=timedelta(seconds=40),
    last_call_wait=OFTEN,
    monitor_process_logfile=f"{options.folder.resolve()}/{os.environ['NODE']}.monitor",
)(train)()
