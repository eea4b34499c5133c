"""What goes up, and what must have ended before anything is tried again."""

import asyncio
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from spotelastic_checkpoints import messages
from spotelastic_checkpoints.commit.save_upload import Save
from spotelastic_checkpoints.commit.upload_pipeline import Pipeline, UploadPolicy
from spotelastic_checkpoints.errors import StorageUnavailable, SupersededByNewerEpoch
from spotelastic_checkpoints.format import manifest
from spotelastic_checkpoints.format.manifest import Manifest
from spotelastic_checkpoints.types import Commit
from support.processes.patience import PATIENT, eventually
from support.saving.upload_pipeline import ONE_TENSOR_A_FILE, run, sealed


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
                self._second_began.wait(PATIENT)
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


class Claimed:
    """The same store, with all parts of the save, claimed by the next epoch."""

    def __init__(self, parts: bool = True) -> None:
        self.parts = parts
        self.asked: list[int] = []
        self.next_round: Callable[[], object] = lambda: None
        """Happens while the first answer is on its way."""

    def has_manifest(self, commit: Commit, rank: int) -> bool:
        return self.parts

    def commit(self, commit: Commit, epoch: int) -> bool:
        self.asked.append(epoch)
        if epoch == 1:
            self.next_round()
            raise SupersededByNewerEpoch("the store is at epoch 2")
        return True


AT_ONCE = UploadPolicy(away_after=0.0)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    return sealed(tmp_path / "slot", tensors=4)


def test_an_attempt_ends_when_all_its_files_have(save: Save) -> None:
    commits = FirstFails()
    events = run(commits, lambda pipeline: pipeline.want(save), policy=ONE_TENSOR_A_FILE)
    assert commits.story == ["try 1", "the file of try 1 has ended", "try 2"]
    assert [type(event) for event in events] == [messages.Committed], "a file is no outage"
    assert commits.manifest is not None
    assert [shard.name for shard in commits.manifest.shards] == [
        f"__0_{number}.distcp" for number in range(4)
    ]


class Request:
    """Of a client of the store, with what is to be sent."""


class Lost(Exception):
    def __init__(self, request: Request) -> None:
        super().__init__("the connection")
        self.request = request


class KeepsRequests(FirstFails):
    """The same store, whose client's error knows its request."""

    gone = False
    """When its file had failed, while the second was still on its way."""

    def put_shard(self, commit: Commit, name: str, data: memoryview, progress: Any) -> None:
        if name == "__0_0.distcp" and not self._tries:
            self._tries = 1
            request = Request()
            self._request = weakref.ref(request)
            assert self._second_began.wait(PATIENT)
            raise StorageUnavailable("away") from Lost(request)
        if name == "__0_1.distcp" and not self._second_began.is_set():
            self._second_began.set()
            with suppress(AssertionError):
                eventually(lambda: self._request() is None)
                self.gone = True


def test_what_a_file_that_failed_was_to_send_is_not_kept_until_the_others_have_ended(
    save: Save,
) -> None:
    commits = KeepsRequests()
    [committed] = run(commits, lambda pipeline: pipeline.want(save), policy=ONE_TENSOR_A_FILE)
    assert isinstance(committed, messages.Committed)
    assert commits.gone


class Rewritten(Claimed):
    """A store that keeps files in memory. While the last one fails for the first time, the same
    step is sealed once more in the same slot."""

    def __init__(self, save: Save) -> None:
        super().__init__(parts=False)
        self.files: dict[str, bytes] = {}
        self.manifest: Manifest | None = None
        [(self._slot, self._header)] = save.slots
        self._sealed_again = False

    def put_shard(self, commit: Commit, name: str, data: memoryview, progress: Any) -> None:
        if name == "__0_3.distcp" and not self._sealed_again:
            self._sealed_again = True
            self._slot.open()
            self._slot.data[: self._header.owned_bytes] = b"2" * self._header.owned_bytes
            self._slot.seal(self._header, [])
            raise StorageUnavailable("away")
        self.files[name] = bytes(data)

    def put_manifest(self, content: Manifest) -> None:
        self.manifest = content

    def commit(self, commit: Commit, epoch: int) -> bool:
        return True


def test_files_of_what_the_slot_held_before_are_sent_again(save: Save) -> None:
    commits = Rewritten(save)
    [committed] = run(commits, lambda pipeline: pipeline.want(save), policy=ONE_TENSOR_A_FILE)
    assert isinstance(committed, messages.Committed)
    assert commits.manifest is not None
    items = [(shard.name, item) for shard in commits.manifest.shards for item in shard.items]
    assert len(items) == 4
    for name, item in items:
        data = memoryview(commits.files[name])[item.offset : item.offset + item.length]
        assert manifest.checksummed(item, data) == item, name


class Slow(Claimed):
    """A store whose first file is on its way until it may end."""

    def __init__(self) -> None:
        super().__init__(parts=False)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.names: list[str] = []

    def put_shard(self, commit: Commit, name: str, data: memoryview, progress: Any) -> None:
        self.names.append(name)
        self.begun.set()
        self.may_end.wait(PATIENT)


def test_an_upload_that_gives_way_ends_with_what_is_on_its_way(save: Save) -> None:
    commits = Slow()

    def work(pipeline: Pipeline) -> None:
        pipeline.want(save)
        asyncio.get_running_loop().run_in_executor(None, commits.begun.wait).add_done_callback(
            lambda _: give_way(pipeline)
        )

    def give_way(pipeline: Pipeline) -> None:
        assert pipeline.give_way()
        assert not pipeline.pinned
        assert not pipeline.give_way()
        commits.may_end.set()

    [told] = run(commits, work, policy=ONE_TENSOR_A_FILE)
    assert isinstance(told, messages.SaveFailed)
    assert told.message == "step 1 was not committed: its slot was needed for a later save"
    assert len(commits.names) <= 2, "as many as there are threads"


class Timed(Slow):
    """The same with every step committed, and no file on its way of steps up to `passes`."""

    def __init__(self, passes: int = 0) -> None:
        super().__init__()
        self._passes = passes
        self.steps: list[int] = []

    def put_shard(self, commit: Commit, name: str, data: memoryview, progress: Any) -> None:
        if commit.step > self._passes:
            super().put_shard(commit, name, data, progress)

    def put_manifest(self, content: Manifest) -> None:
        self.steps.append(content.step)

    def commit(self, commit: Commit, epoch: int) -> bool:
        return True


@pytest.mark.parametrize(("seconds", "sent"), [(1e9, [1, 2, 3]), (0.0, [1, 3])])
def test_a_node_that_is_about_to_go_sends_the_newest_save_it_has_time_for(
    save: Save, seconds: float, sent: list[int]
) -> None:
    """By how fast the first one went up."""
    commits = Timed(passes=1)
    second, third = (dataclasses.replace(save, commit=Commit(1, step)) for step in (2, 3))

    def moved_on(pipeline: Pipeline) -> None:
        if commits.steps != [1] or pipeline.busy():
            return
        pipeline.deadline = time.time() + seconds
        pipeline.want(second)

        def begun(_: object) -> None:
            pipeline.want(third)
            commits.may_end.set()

        waiting = asyncio.get_running_loop().run_in_executor(None, commits.begun.wait)
        waiting.add_done_callback(begun)

    told = run(commits, lambda pipeline: pipeline.want(save), moved_on, policy=ONE_TENSOR_A_FILE)
    assert commits.steps == sent
    assert [event.step for event in told if isinstance(event, messages.Committed)] == sent
    assert [event.message for event in told if isinstance(event, messages.SaveFailed)] == [
        "step 2 was not committed: "
        "the node is about to go, and only a later save can still be uploaded in time"
        for _ in range(3 - len(sent))
    ]


def test_an_upload_that_is_no_history_of_the_next_round_ends_with_what_is_on_its_way(
    save: Save,
) -> None:
    commits = Timed()
    later = dataclasses.replace(save, commit=Commit(1, 2))

    def work(pipeline: Pipeline) -> None:
        pipeline.want(later)
        asyncio.get_running_loop().run_in_executor(None, commits.begun.wait).add_done_callback(
            lambda _: next_round(pipeline)
        )

    def next_round(pipeline: Pipeline) -> None:
        pipeline.adopt(2, lambda kept: kept.commit.step <= 1)
        assert not pipeline.pinned
        pipeline.want(save)  # the step that the round goes on from
        commits.may_end.set()

    [committed] = run(commits, work, policy=ONE_TENSOR_A_FILE)
    assert isinstance(committed, messages.Committed)
    assert (committed.step, commits.steps) == (1, [1])
    assert len(commits.names) <= 2 + 4, "no more of the other than there are threads"


def begin(pipeline: Pipeline, epoch: int) -> None:
    pipeline.adopt(epoch, lambda save: True)


def test_a_save_that_is_outrun_is_recorded_when_the_next_round_begins(save: Save) -> None:
    commits = Claimed()

    def work(pipeline: Pipeline) -> None:
        begin(pipeline, 1)
        pipeline.want(save)

    assert run(commits, work) == [messages.Superseded(1)]

    def work_on(pipeline: Pipeline) -> None:
        loop = asyncio.get_running_loop()
        commits.next_round = lambda: loop.call_soon_threadsafe(begin, pipeline, 2)
        work(pipeline)

    # The next round may begin while the answer is on its way: nothing is outrun then.
    commits.asked.clear()
    [committed] = run(commits, work_on)
    assert isinstance(committed, messages.Committed)
    assert (committed.epoch, committed.step) == (1, 1)
    assert commits.asked == [1, 2]


def test_a_save_whose_slot_holds_another_by_now_is_given_up(save: Save) -> None:
    [(slot, header)] = save.slots
    slot.open()
    slot.data[:] = bytes(len(slot.data))
    slot.seal(header, [])
    for step in (1, 2):
        slot.seal(replace(header, step=step), [])
        [told] = run(Claimed(parts=False), lambda pipeline: pipeline.want(save))
        assert isinstance(told, messages.SaveFailed)
        assert "step 1 was not committed: " in told.message


class Away(Timed):
    """A store that is away at first; it is back at one of the tries, or when it is said."""

    def __init__(self, tries: int = 1000) -> None:
        super().__init__()
        self.may_end.set()
        self.back = False
        self.tries = 0
        self._back_at = tries

    def has_manifest(self, commit: Commit, rank: int) -> bool:
        self.tries += 1
        if not self.back and self.tries < self._back_at:
            raise StorageUnavailable(f"away, it seems at try {self.tries}")
        return False


def sealed_over(save: Save, step: int) -> Save:
    """A later one, in the same slot."""
    [(slot, header)] = save.slots
    slot.open()
    header = replace(header, step=step)
    slot.seal(header, [])
    return Save(Commit(1, step), save.incarnation, ((slot, header),))


def test_while_the_store_is_away_a_slot_is_free_and_what_overwrites_it_goes_up(
    save: Save,
) -> None:
    commits = Away()
    later: list[Save] = []

    def moved_on(pipeline: Pipeline) -> None:
        if not later and not pipeline.in_use:
            assert pipeline.pinned, "others are overwritten before"
            later.append(sealed_over(save, 2))
        elif commits.tries > 3:
            commits.back = True

    def overwritten(pipeline: Pipeline) -> None:
        assert not pipeline.want(save)
        assert pipeline.want(later[0])

    told = run(commits, lambda pipeline: pipeline.want(save), moved_on, overwritten, AT_ONCE)
    assert commits.steps == [2]
    assert [type(event) for event in told] == [messages.SaveFailed, messages.Committed], (
        "the outage, once"
    )


def test_a_store_that_is_away_for_a_moment_frees_no_slot(save: Save) -> None:
    commits = Away(tries=4)
    free: list[int] = []

    def moved_on(pipeline: Pipeline) -> None:
        free.append(commits.tries)

    [_, committed] = run(commits, lambda pipeline: pipeline.want(save), moved_on)
    assert isinstance(committed, messages.Committed)
    assert free[0] == 4, "tries until then"


class Incomplete(Claimed):
    """The same store, to which another node never sends its part of the save."""

    def commit(self, commit: Commit, epoch: int) -> bool:
        return False


def test_what_was_sent_holds_no_slot_while_others_have_not_sent_theirs(save: Save) -> None:
    """They may never: with two slots that was the end of all saves."""

    async def until_free() -> None:
        moved = asyncio.Event()
        with ThreadPoolExecutor(2) as pool:
            pipeline = Pipeline(
                Incomplete,  # type: ignore[arg-type]
                lambda event: None,
                moved.set,
                pool,
                pool,
                lambda commit: None,
                lambda: None,
            )
            running = asyncio.create_task(pipeline.run())
            pipeline.want(save)
            assert pipeline.pinned == save.paths
            while pipeline.pinned:
                await asyncio.wait_for(moved.wait(), PATIENT)
                moved.clear()
            assert pipeline.busy()
            running.cancel()

    asyncio.run(until_free())


class Hangs(FirstFails):
    """Takes nothing until that was told."""

    pipeline: Pipeline

    def put_shard(self, commit: Commit, name: str, data: memoryview, progress: Any) -> None:
        eventually(lambda: self.pipeline.outage)
        progress(len(data))

    def work(self, pipeline: Pipeline, save: Save) -> None:
        self.pipeline = pipeline
        pipeline.want(save)


def test_an_upload_that_hangs_is_told_once_before_its_request_fails(save: Save) -> None:
    store = Hangs()
    told, committed = run(
        store, lambda pipeline: store.work(pipeline, save), policy=UploadPolicy(silent_for=0.05)
    )
    assert isinstance(told, messages.SaveFailed) and isinstance(committed, messages.Committed)
    assert told.message.startswith("step 1: the store has taken nothing for")
    assert "hangs" in told.message and store.pipeline.outage == ""
