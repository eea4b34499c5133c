"""Measures saves of one process with spotelastic: stalls, time until committed, memory, CPU."""

import time
from concurrent.futures import ThreadPoolExecutor

import obstore
from common.measuring import machine_at_rest, memory_at_hand
from jobs.node import DEADLINE, node
from jobs.s3_servers import BUCKET, TENSORS, Server
from jobs.states import Saves, Shape, WarmCopy
from obstore.store import S3Store
from spotelastic_checkpoints.daemon import service
from spotelastic_checkpoints.format import shards
from spotelastic_checkpoints.restore import sources
from spotelastic_checkpoints.storage.s3.s3_storage import S3Storage

import spotelastic as se

_CEILING = "ceiling"


def save_ours(server: Server, shape: Shape, times: int) -> Saves:
    state = shape.make()
    warm = WarmCopy(state)
    with node(server.url("ours"), slots=2) as here:
        here.begin("r1", epoch=here.claim().epoch)
        with se.Checkpointer(state) as checkpoint:
            copies, stalls, committed, memory = [], [], [], 0
            here.make_ready(checkpoint)
            before = here.cpu()
            for step in range(2, times + 2):
                server.empty(above=TENSORS)
                machine_at_rest()
                memory_at_hand(server.room * shape.nbytes)
                copies.append(warm.seconds())
                begun = time.perf_counter()
                checkpoint.step(step)
                stalls.append(time.perf_counter() - begun)
                here.flush()
                committed.append(time.perf_counter() - begun)
                memory = max(memory, here.memory())
            spent = (here.cpu() - before) / (times * shape.nbytes / (1 << 30))
    return Saves(tuple(copies), tuple(stalls), tuple(committed), spent, memory)


def memory_over(storage: str, shape: Shape, saves: int) -> tuple[int, int]:
    """Return the daemon's own memory after a tenth of the saves, and after all."""
    state = shape.make()
    memory = []
    with node(storage) as here:
        here.begin("r1", epoch=here.claim().epoch)
        with se.Checkpointer(state) as checkpoint:
            here.make_ready(checkpoint)
            for step in range(2, saves + 2):
                checkpoint.step(step)
                here.flush()
                memory.append(here.memory())
    return memory[len(memory) // 10], memory[-1]


def send(server: Server, shape: Shape, times: int) -> float:
    """Return the seconds that the server takes to receive that many bytes from an idle client.

    They are sent as many new objects as a save would make.
    """
    store = S3Store(
        BUCKET,
        prefix=_CEILING,
        endpoint=server.endpoint,
        virtual_hosted_style_request=False,
        unsigned_payload=True,
        client_options={"allow_http": True},
    )
    data = memoryview(b"\1" * shards.FILE)
    took = []
    for turn in range(times):
        server.empty()
        memory_at_hand(server.room * shape.nbytes)
        begun = time.perf_counter()
        with ThreadPoolExecutor(service.UPLOADS) as pool:
            sent = [
                pool.submit(
                    obstore.put, store, f"{turn}/{number}", data[:size], use_multipart=False
                )
                for number, size in enumerate(_sizes(shape))
            ]
            for answer in sent:
                answer.result(DEADLINE)
        took.append(time.perf_counter() - begun)
    return min(took)


def receive(server: Server, shape: Shape) -> float:
    """Return the seconds that the server takes to send them back, the first time."""
    send(server, shape, times=1)
    store, most = S3Storage(server.url(_CEILING)), sources.STORE_RANGE

    def read(number: int, start: int) -> None:
        length = min(most, sizes[number] - start)
        assert store.read(f"0/{number}", start, memoryview(bytearray(length))) == length

    sizes = _sizes(shape)
    begun = time.perf_counter()
    with ThreadPoolExecutor(sources.STORE_AT_ONCE) as pool:
        given = [
            pool.submit(read, number, start)
            for start in range(0, shards.FILE, most)
            for number in range(len(sizes))
            if start < sizes[number]
        ]
        for answer in given:
            answer.result(DEADLINE)
    return time.perf_counter() - begun


def _sizes(shape: Shape) -> list[int]:
    """Return the sizes of the objects, which are named 0/0, 0/1, 0/2, …"""
    return [min(shards.FILE, shape.nbytes - at) for at in range(0, shape.nbytes, shards.FILE)]
