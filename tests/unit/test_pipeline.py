"""What goes up, and what must have ended before anything is tried again."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints import arena, encoding, layout, shards, wire
from spotelastic_checkpoints.arena import Slot, SlotHeader
from spotelastic_checkpoints.errors import StorageUnavailable
from spotelastic_checkpoints.layout import Declaration, Declared
from spotelastic_checkpoints.manifest import Manifest
from spotelastic_checkpoints.pipeline import Pipeline, Save
from spotelastic_checkpoints.retention import Keep
from spotelastic_checkpoints.wire import Commit

ROWS = 1000


class FirstFails:
    """The protocol's store, of which the first file fails once while the second is on its way."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.manifest: Manifest | None = None
        self._second_began, self._tried_again = threading.Event(), threading.Event()
        self._tries = 0

    def has_manifest(self, commit: Commit, rank: int) -> bool:
        return False

    def put_shard(self, commit: Commit, name: str, data: memoryview, progress: Any) -> None:
        number = int(name.removeprefix("__0_").removesuffix(".distcp"))
        if number == 0:
            self._tries += 1
            self.story.append(f"try {self._tries}")
            if self._tries == 1:
                self._second_began.wait(10.0)
                raise StorageUnavailable("away")
            self._tried_again.set()
        if number == 1 and not self._second_began.is_set():
            self._second_began.set()
            # An attempt that does not wait for this one begins within half a second.
            self._tried_again.wait(1.0)
            self.story.append("the file of try 1 has ended")

    def put_manifest(self, content: Manifest) -> None:
        self.manifest = content

    def commit(self, commit: Commit, epoch: int) -> bool:
        return True


@pytest.fixture
def save(tmp_path: Path) -> Save:
    declared = tuple(
        Declared(f"t{number}", (f"t{number}",), "float32", (ROWS,), (0,), (ROWS,))
        for number in range(4)
    )
    own = layout.plan([Declaration(0, "n", declared)]).slots[0]
    index = arena.encode_index(own.items)
    path = tmp_path / "slot"
    path.write_bytes(bytes(arena.slot_bytes(own.nbytes, index, 0)))
    slot = Slot(path)
    slot.open()
    slot.write_index(own.nbytes, index)
    header = SlotHeader(
        owner="test", incarnation="r1", step=1, layout="l", rank=0, world_size=1, ranks=(0,),
        whole=True, chunks=4, shared=4, owned=own.owned, owned_bytes=own.owned_bytes,
        data_bytes=own.nbytes, index_bytes=len(index), values=0, due=True,
    )  # fmt: skip
    slot.seal(header, [])
    return Save(Commit(1, 1), "r1", ((slot, header),))


def test_an_attempt_ends_when_all_its_files_have(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = encoding.nbytes("float32", (ROWS,)) + 1000
    monkeypatch.setattr(shards.cut, "__defaults__", (size,))
    commits, events = FirstFails(), list[wire.DaemonEvent]()

    async def committed() -> None:
        done = asyncio.Event()
        with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as uploads:
            pipeline = Pipeline(
                lambda: commits,  # type: ignore[arg-type, return-value]
                events.append,
                done.set,
                pool,
                uploads,
                Keep(),
            )
            running = asyncio.create_task(pipeline.run())
            pipeline.want(save)
            await asyncio.wait_for(done.wait(), 20.0)
            running.cancel()

    asyncio.run(committed())
    assert commits.story == ["try 1", "the file of try 1 has ended", "try 2"]
    assert [type(event) for event in events] == [wire.Failed, wire.Committed]
    assert commits.manifest is not None
    assert [shard.name for shard in commits.manifest.shards] == [
        f"__0_{number}.distcp" for number in range(4)
    ]
