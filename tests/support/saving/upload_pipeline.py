"""Makes one save of an invented state, and an upload pipeline inside the test's process."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.commit.save_upload import Save
from spotelastic_checkpoints.commit.upload_pipeline import UPLOAD_POLICY, Pipeline, UploadPolicy
from spotelastic_checkpoints.format import encoding, layout
from spotelastic_checkpoints.format.layout import Declaration, Declared
from spotelastic_checkpoints.memory import arena
from spotelastic_checkpoints.memory.arena import Slot, SlotHeader
from spotelastic_checkpoints.types import Commit
from support.processes.patience import PATIENT

ROWS = 1000


def sealed(path: Path, tensors: int) -> Save:
    """Step 1 of epoch 1, of one rank."""
    declared = tuple(
        Declared(f"t{number}", (f"t{number}",), "float32", (ROWS,), (0,), (ROWS,))
        for number in range(tensors)
    )
    own = layout.plan([Declaration(0, "n", declared)]).slots[0]
    index = arena.encode_index(own.items)
    path.write_bytes(bytes(arena.slot_bytes(own.nbytes, index, 0)))
    slot = Slot(path)
    slot.open()
    slot.write_index(own.nbytes, index)
    header = SlotHeader(
        owner="test", incarnation="r1", step=1, layout="l", rank=0, world_size=1, ranks=(0,),
        whole=True, chunks=tensors, shared=tensors, owned=own.owned, owned_bytes=own.owned_bytes,
        data_bytes=own.nbytes, index_bytes=len(index), values=0, due=True,
    )  # fmt: skip
    slot.seal(header, [])
    return Save(Commit(1, 1), "r1", ((slot, header),))


ONE_TENSOR_A_FILE = UploadPolicy(file=encoding.nbytes("float32", (ROWS,)) + 1000)


def nothing(pipeline: Pipeline) -> None:
    pass


def run(
    commits: object,
    work: Callable[[Pipeline], object],
    moved_on: Callable[[Pipeline], object] = nothing,
    overwritten: Callable[[Pipeline], None] = nothing,
    policy: UploadPolicy = UPLOAD_POLICY,
) -> list[messages.DaemonEvent]:
    """What a pipeline tells until it has nothing more to do."""
    events: list[messages.DaemonEvent] = []

    async def until_idle() -> None:
        moved = asyncio.Event()
        with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as uploads:
            pipeline = Pipeline(
                lambda: commits,  # type: ignore[arg-type, return-value]
                events.append,
                moved.set,
                pool,
                uploads,
                lambda commit: None,
                lambda: overwritten(pipeline),
                policy,
            )
            running = asyncio.create_task(pipeline.run())
            work(pipeline)
            while pipeline.busy():
                await asyncio.wait_for(moved.wait(), PATIENT)
                moved.clear()
                moved_on(pipeline)
            running.cancel()

    asyncio.run(until_idle())
    return events
