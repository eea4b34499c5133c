"""Saves with `torch.distributed.checkpoint`, through s3fs and s3torchconnector, for comparison."""

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch.distributed.checkpoint as dcp
from common.measuring import machine_at_rest, memory_at_hand
from jobs.s3_servers import Server
from jobs.states import Saves, Shape, WarmCopy
from torch.distributed.checkpoint.api import CheckpointException

warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process saves, here


def _writer(kind: str, url: str) -> Any:
    if kind == "s3fs":
        return fsspec().FsspecWriter(url)
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageWriter

    return S3StorageWriter("us-east-1", url, s3client_config=S3ClientConfig(force_path_style=True))


def fsspec() -> Any:
    from torch.distributed.checkpoint import _fsspec_filesystem

    return _fsspec_filesystem


@contextlib.contextmanager
def as_exception() -> Iterator[None]:
    """Turn `CheckpointException`, a BaseException that would end the process, into an exception.

    Also silences what s3torchconnector prints when the interpreter ends.
    """
    try:
        yield
    except CheckpointException as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        raise RuntimeError(str(error).strip().rpartition("\n")[2]) from None


def save_theirs(server: Server, kind: str, shape: Shape, times: int) -> Saves:
    """Save with `dcp.save` through s3fs or s3torchconnector; the stall is the whole save."""
    state = shape.make()
    took = []
    for step in range(1, times + 1):
        server.empty()
        writer = _writer(kind, f"{server.url(kind)}/{step}")
        machine_at_rest()
        memory_at_hand(server.room * shape.nbytes)
        begun = time.perf_counter()
        with as_exception():
            dcp.save(state, storage_writer=writer, no_dist=True)
        took.append(time.perf_counter() - begun)
    return Saves((), tuple(took), tuple(took))


def save_async(server: Server, shape: Shape, times: int) -> Saves:
    """Save with `dcp.async_save` to the same target; each save ends before the next begins."""
    state = shape.make()
    copies, stalls, committed = [], [], []
    for step in range(1, times + 1):
        server.empty()
        writer = _writer("s3fs", f"{server.url('async')}/{step}")
        machine_at_rest()
        copies.append(WarmCopy(state).seconds())
        begun = time.perf_counter()
        with as_exception():
            done: Any = dcp.async_save(state, storage_writer=writer, no_dist=True)
            stalls.append(time.perf_counter() - begun)
            done.result()
        committed.append(time.perf_counter() - begun)
    return Saves(tuple(copies), tuple(stalls), tuple(committed))
