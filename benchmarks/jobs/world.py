"""Runs several ranks that save or restore together, with spotelastic and with DCP."""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from jobs import peers
from jobs.node import DEADLINE, Crash
from jobs.states import Shape, State
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import spotelastic as se


def _meet(rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(LOCAL_RANK=str(rank), SPOTELASTIC_LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)


def rank_saves(rank: int, world: int, port: int, shape: Shape) -> None:
    """Run a rank that saves with spotelastic, and crashes once it is committed."""
    _meet(rank, world, port)
    with contextlib.suppress(Crash), se.Checkpointer(shape.make()) as checkpoint:
        checkpoint.step(1)
        assert checkpoint._client is not None
        checkpoint._client.ready.wait(DEADLINE)
        checkpoint.step(2)
        dist.barrier()
        if rank == 0:
            client = DaemonClient(os.environ["SPOTELASTIC_DAEMON"])
            if not client.flush(DEADLINE):
                raise RuntimeError(client.status().error)
        dist.barrier()
        raise Crash


def rank_restores(rank: int, world: int, port: int, shape: Shape) -> float:
    """Return the seconds until all ranks have the state."""
    _meet(rank, world, port)
    state = shape.make(seed=1)
    seconds = _restored(state)
    _compare(state, shape.made())
    return seconds


def _restored(state: dict[str, Any]) -> float:
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        dist.barrier()
        begun = time.perf_counter()
        checkpoint.restore()
        dist.barrier()
        seconds = time.perf_counter() - begun
        raise Crash
    return seconds


def _compare(state: State, expected: Iterable[tuple[str, torch.Tensor]]) -> None:
    if any(not torch.equal(state[name], tensor) for name, tensor in expected):
        raise RuntimeError("not what was saved")


def _sharded(shape: Shape, world: int, seed: int) -> Iterator[tuple[str, DTensor]]:
    """Shard a state as FSDP does: every rank has a part of each tensor."""
    mesh = init_device_mesh("cpu", (world,))
    for name, tensor in shape.made(seed):
        yield name, distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)


def rank_saves_shards(
    rank: int, world: int, port: int, shape: Shape, environments: list[dict[str, str]]
) -> None:
    """Run one of several ranks, each on its own node."""
    _meet(rank, world, port)
    os.environ.update(environments[rank], LOCAL_RANK="0", SPOTELASTIC_LOCAL_RANK="0")
    state: dict[str, Any] = dict(_sharded(shape, world, seed=0))
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        checkpoint.step(1)
        checkpoint.save()
        if not checkpoint.wait(DEADLINE):
            raise RuntimeError("not committed")
        dist.barrier()
        raise Crash


def rank_restores_shards(
    rank: int, world: int, port: int, shape: Shape, environments: list[dict[str, str]]
) -> float:
    """Return the seconds until all ranks have their parts."""
    _meet(rank, world, port)
    os.environ.update(environments[rank], LOCAL_RANK="0", SPOTELASTIC_LOCAL_RANK="0")
    state: dict[str, Any] = dict(_sharded(shape, world, seed=1))
    seconds = _restored(state)
    parts = {name: tensor.to_local() for name, tensor in state.items()}
    _compare(parts, ((name, tensor.to_local()) for name, tensor in _sharded(shape, world, seed=0)))
    return seconds


def rank_loads(rank: int, world: int, port: int, url: str, shape: Shape) -> float:
    """Return the seconds until all ranks have the state with `dcp.load` through s3fs."""
    _meet(rank, world, port)
    state = shape.make(seed=1)
    reader = peers.fsspec().FsspecReader(url)
    dist.barrier()
    begun = time.perf_counter()
    with peers.as_exception():
        dcp.load(state, storage_reader=reader)
    dist.barrier()
    seconds = time.perf_counter() - begun
    _compare(state, shape.made())
    return seconds


def rank_saves_stock(rank: int, world: int, port: int, url: str, shape: Shape) -> None:
    _meet(rank, world, port)
    with peers.as_exception():
        dcp.save(shape.make(), storage_writer=peers.fsspec().FsspecWriter(url))
