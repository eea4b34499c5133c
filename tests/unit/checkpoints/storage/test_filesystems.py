"""Stores that are reached through fsspec: what they are opened with, and what does not answer."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileOpener
from fsspec.implementations.memory import MemoryFileSystem
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import LATEST
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage import hanging as hanging_module
from spotelastic_checkpoints.storage.filesystems import FsspecStorage
from spotelastic_checkpoints.storage.hanging import COPIES, MOST, SMALL, Copies, Hanging
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import open_storage
from support.processes.patience import PATIENT, eventually
from support.saving.fixed_answers import answering
from support.saving.plain_files import PlainFileSystem

LARGE = 4096
"""Bytes of an object that goes up in parts."""


class Hold:
    """Of the calls with one name: the next one gets no answer until it is let go."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reached, self.go_on, self.done = (threading.Event() for _ in range(3))
        self._first = threading.Lock()

    def __call__(self, name: str) -> bool:
        return name == self.name and self._first.acquire(blocking=False)


class Slow(PlainFileSystem):
    """Its next call of one name hangs."""

    protocol = "slow"
    hold: ClassVar[Hold | None] = None

    def _held(self, name: str, *arguments: Any, **options: Any) -> Any:
        hold, call = Slow.hold, getattr(super(), name)
        if hold is None or not hold(name):
            return call(*arguments, **options)
        hold.reached.set()
        assert hold.go_on.wait(PATIENT)
        try:
            return call(*arguments, **options)
        finally:
            hold.done.set()

    def cat_file(self, *arguments: Any, **options: Any) -> Any:
        return self._held("cat_file", *arguments, **options)

    def pipe_file(self, *arguments: Any, **options: Any) -> Any:
        return self._held("pipe_file", *arguments, **options)

    def find(self, *arguments: Any, **options: Any) -> Any:
        return self._held("find", *arguments, **options)

    def rm_file(self, *arguments: Any, **options: Any) -> Any:
        return self._held("rm_file", *arguments, **options)

    def open(self, *arguments: Any, **options: Any) -> Any:
        return self._held("open", *arguments, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return super()._strip_protocol(str(path).removeprefix("slow://"))


fsspec.register_implementation("slow", Slow)


HASTY = Limits(answer=0.05, part=0.05)


def opened(
    folder: Path,
    limits: Limits = DEFAULT_LIMITS,
    whole: int = LARGE - 1,
    copies: Copies = COPIES,
) -> FsspecStorage:
    return FsspecStorage(f"slow://{folder}/store", limits=limits, whole=whole, copies=copies)


@pytest.fixture
def storage(tmp_path: Path) -> FsspecStorage:
    storage = opened(tmp_path)
    assert storage.create("LATEST", b"first")
    return storage


@pytest.fixture
def hasty(storage: FsspecStorage, tmp_path: Path) -> FsspecStorage:
    """The same store, whose calls are given up soon."""
    return opened(tmp_path, HASTY)


@contextmanager
def hanging(name: str) -> Iterator[Hold]:
    """The next call of the name hangs."""
    hold = Hold(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slow, "hold", hold)
        try:
            yield hold
        finally:
            hold.go_on.set()


CALLS: dict[str, Callable[[Storage], object]] = {
    "cat_file": lambda storage: storage.get("LATEST"),
    "find": lambda storage: storage.keys(),
    "rm_file": lambda storage: storage.delete(["LATEST"]),
    "pipe_file": lambda storage: storage.put("shard", memoryview(b"data")),
    "open": lambda storage: storage.put("large", memoryview(bytes(LARGE))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_without_an_answer_is_given_up(
    storage: FsspecStorage, hasty: FsspecStorage, name: str
) -> None:
    with hanging(name), pytest.raises(StorageUnavailable, match=r"slow://.* within 0\.05 s"):
        CALLS[name](hasty)
    CALLS[name](storage)


def test_a_part_without_an_answer_leaves_no_object(
    storage: FsspecStorage, hasty: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(LocalFileOpener, "write", lambda *_: go_on.wait(PATIENT))
    with pytest.raises(StorageUnavailable):
        hasty.put("large", memoryview(bytes(LARGE)))
    go_on.set()
    assert storage.get("large") is None


def test_what_comes_through_late_is_what_was_to_be_written(
    storage: FsspecStorage, hasty: FsspecStorage
) -> None:
    memory = bytearray(b"the save of step 1")
    with hanging("pipe_file") as hold:
        with pytest.raises(StorageUnavailable):
            hasty.put("shard", memoryview(memory))
        assert hold.reached.wait(PATIENT)
        memory[-1:] = b"2"
    assert hold.done.wait(PATIENT)
    blob = storage.get("shard")
    assert blob is not None
    assert blob.data == b"the save of step 1"


def test_nothing_is_swapped_while_an_earlier_swap_may_still_come_through(
    storage: FsspecStorage, hasty: FsspecStorage
) -> None:
    first = storage.get("LATEST")
    assert first is not None
    with hanging("pipe_file") as hold:
        with pytest.raises(StorageUnavailable):
            hasty.swap("LATEST", b"second", first.etag)
        assert hold.reached.wait(PATIENT)  # it may have been given up before that
        with pytest.raises(StorageUnavailable):
            hasty.swap("LATEST", b"third", first.etag)
    assert hold.done.wait(PATIENT)
    assert not storage.swap("LATEST", b"third", first.etag)
    after = storage.get("LATEST")
    assert after is not None
    assert after.data == b"second"


def test_no_more_calls_are_left_behind_than_there_is_room_for() -> None:
    go_on = threading.Event()
    hanging = Hanging(most=1)
    with pytest.raises(TimeoutError, match="no answer"):
        hanging.within(0.01, lambda: go_on.wait(PATIENT))
    with pytest.raises(TimeoutError, match="1 calls have not been answered yet"):
        hanging.within(0.01, lambda: True)
    go_on.set()
    assert hanging.within(PATIENT, lambda: True)


def with_room(
    folder: Path, nbytes: int, limits: Limits = DEFAULT_LIMITS
) -> tuple[FsspecStorage, Copies]:
    """A store with room for so many bytes of copies, however small these are."""
    copies = Copies(nbytes, small=0)
    return opened(folder, limits, copies=copies), copies


def is_free(copies: Copies, nbytes: int) -> bool:
    try:
        give_back = copies.room(nbytes, 0.01)
    except TimeoutError:
        return False
    give_back()
    return True


def test_no_more_is_copied_at_a_time_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, copies = with_room(tmp_path, 3000)
    at_once, most, lock = 0, 0, threading.Lock()
    crowded = threading.Barrier(3)  # as many as there is room for

    def pipe(_: object, path: str, data: bytes) -> None:
        nonlocal at_once, most
        with lock:
            at_once += len(data)
            most = max(most, at_once)
        crowded.wait(PATIENT)
        Path(path).parent.mkdir(exist_ok=True)  # otherwise it is called once more
        Path(path).write_bytes(data)
        with lock:
            at_once -= len(data)

    monkeypatch.setattr(Slow, "pipe_file", pipe)
    data = memoryview(bytes(1000))
    with ThreadPoolExecutor(12) as pool:
        for put in [pool.submit(storage.put, f"shard{n}", data) for n in range(12)]:
            put.result(PATIENT)
    assert most == 3000
    assert is_free(copies, 3000)


@pytest.mark.parametrize("name", ["pipe_file", "open"])
def test_what_is_larger_than_all_of_the_room_goes_up_alone(tmp_path: Path, name: str) -> None:
    storage, copies = with_room(tmp_path, 10)
    CALLS[name](storage)
    storage.put("shard", memoryview(bytes(1000)))
    assert is_free(copies, 10)
    give_back = copies.room(1, PATIENT)
    assert not is_free(copies, 1000)
    give_back()
    assert is_free(copies, 1000)


def test_a_copy_that_was_left_behind_keeps_its_room_until_its_call_ends(
    tmp_path: Path,
) -> None:
    storage, copies = with_room(tmp_path, 1500)
    hasty = opened(tmp_path, HASTY, copies=copies)
    data = memoryview(bytes(1000))
    with hanging("pipe_file") as hold:
        with pytest.raises(StorageUnavailable, match="no answer"):
            hasty.put("shard", data)
        assert hold.reached.wait(PATIENT)
        assert is_free(copies, 500) and not is_free(copies, 501)
        with pytest.raises(StorageUnavailable, match=r"shard: no room within 0\.05 s"):
            hasty.put("shard", data)
        storage.put("small", data[:500])
    eventually(lambda: is_free(copies, 1500))
    storage.put("shard", data)


def test_a_part_that_was_left_behind_keeps_its_room_until_its_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty, copies = with_room(tmp_path, LARGE, Limits(answer=PATIENT, part=HASTY.part))
    reached, go_on = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        reached.set()
        assert go_on.wait(PATIENT)

    monkeypatch.setattr(LocalFileOpener, "write", write)
    with pytest.raises(StorageUnavailable):
        hasty.put("large", memoryview(bytes(LARGE)))
    assert reached.wait(PATIENT)
    assert not is_free(copies, 1)
    go_on.set()
    eventually(lambda: is_free(copies, LARGE))


def test_a_call_that_cannot_begin_gives_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise RuntimeError("can't start new thread")

    storage, copies = with_room(tmp_path, 1000)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        for _ in range(MOST + 1):
            with pytest.raises(StorageUnavailable, match="new thread"):
                storage.put("shard", memoryview(bytes(1000)))
    assert is_free(copies, 1000)
    storage.put("shard", memoryview(bytes(1000)))


def test_what_is_small_goes_up_beside_calls_that_were_left_behind_with_all_of_the_room(
    tmp_path: Path,
) -> None:
    copies = Copies(SMALL + 1)
    data = memoryview(bytes(SMALL + 1))
    hasty = opened(tmp_path, HASTY, SMALL + 1, copies)
    with hanging("pipe_file") as hold:
        with pytest.raises(StorageUnavailable, match="no answer"):
            hasty.put("shard", data)
        assert hold.reached.wait(PATIENT)
        with pytest.raises(StorageUnavailable, match="no room"):
            hasty.put("shard", data)
        sooner_than_the_call_ends = Limits(answer=PATIENT / 4, part=PATIENT / 4)
        storage = opened(tmp_path, sooner_than_the_call_ends, SMALL + 1, copies)
        storage.put("manifest", data[:SMALL])


def test_an_error_that_somebody_keeps_does_not_keep_what_could_not_be_written(
    storage: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Copy(bytes):
        def __del__(self) -> None:
            freed.append(len(self))

    def sent(data: bytes) -> None:
        raise OSError("away")

    def fail(_: object, path: str, data: bytes) -> None:
        try:
            sent(data)
        except OSError as error:
            raise RuntimeError(f"{path} was not sent: {error}") from error

    freed: list[int] = []
    monkeypatch.setattr(Slow, "pipe_file", fail)
    monkeypatch.setattr(hanging_module, "bytes", Copy, raising=False)
    with pytest.raises(StorageUnavailable, match="shard was not sent: away") as caught:
        storage.put("shard", memoryview(b"data"))
    eventually(lambda: freed == [4])
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_latest_that_is_not_whole_is_waited_for_where_writes_may_be_seen(
    tmp_path: Path,
) -> None:
    storage = open_storage(f"plain://{tmp_path}/store")
    commits = Commits(storage, "me")
    commits.claim()
    storage.put(LATEST, memoryview(b'{"owner":"me","ep'))
    with pytest.raises(StorageUnavailable, match="if it stays so, delete it"):
        commits.claim()
    storage.delete([LATEST])
    assert commits.claim().epoch == 1
    storage.put(LATEST, memoryview(b'"checkpoint-100"'))
    with pytest.raises(StorageRefused, match="not written by spotelastic"):
        commits.claim()


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(PlainFileSystem, "pipe_file", cannot)
    with pytest.raises(StorageRefused, match="cannot do this"):
        open_storage(f"plain://{tmp_path}").create("LATEST", b"first")


class OutOfRange(Exception):
    code = 416


def test_a_range_behind_the_end_is_empty_and_more_than_the_range_is_refused(
    storage: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behind(*_: object, **__: object) -> bytes:
        raise OutOfRange

    monkeypatch.setattr(Slow, "cat_file", behind)
    assert storage.read("shard", 100, memoryview(bytearray(4))) == 0
    monkeypatch.setattr(Slow, "cat_file", lambda *_, **__: b"all of it")
    with pytest.raises(StorageRefused, match="more than the range"):
        storage.read("shard", 0, memoryview(bytearray(4)))


class Remote(MemoryFileSystem):
    """Where it is stands in the URL, and one of its options is needed."""

    protocol = "remote"
    cachable = False
    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, host: str, *, token: str) -> None:
        super().__init__()
        self.made.append({"host": host, "token": token})

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, str]:
        return {"host": url.partition("://")[2].partition("/")[0]}


def test_a_file_system_is_made_of_its_url_and_the_options_that_were_given() -> None:
    fsspec.register_implementation("remote", Remote, clobber=True)
    open_storage("remote://here/run", {"token": "secret", "skip_instance_cache": True})
    assert Remote.made == [{"host": "here", "token": "secret"}]
    with pytest.raises(StorageRefused, match="token"):
        open_storage("remote://here/run")


@pytest.mark.parametrize(
    ("url", "options", "module", "command"),
    [
        ("gs://b/r", {"token": "anon"}, "gcsfs", "pip install gcsfs"),
        ("az://b/r", {"anon": True}, "adlfs", "pip install adlfs"),
        ("sftp://host/r", None, "paramiko", "pip install paramiko"),
        ("dropbox://r", None, "dropboxdrivefs", "pip install dropboxdrivefs"),
    ],
)
def test_a_scheme_without_its_package_names_the_command(
    url: str,
    options: dict[str, Any] | None,
    module: str,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StorageRefused, match=command):
        open_storage(url, options)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("nosuch://host/folder", None, "nosuch://host/folder: .*not known"),
        ("simplecache::s3://bucket/run", None, "name the store itself"),
        ("/tmp/run", {"anon": True}, "/tmp/run: a folder has no option anon"),
        ("s3://bucket/run", {"anonymous": True}, "anonymous"),
    ],
)
def test_what_cannot_be_opened_is_refused(
    url: str, options: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(StorageRefused, match=message):
        open_storage(url, options)


def test_options_of_s3fs_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, Message]] = []
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with answering(403, "AccessDenied", heard) as endpoint:
        given = {"key": "me", "secret": "mine", "endpoint_url": endpoint}
        storage = open_storage("s3://bucket/run", given)
        with pytest.raises(StorageRefused, match="AccessDenied"):
            storage.get("LATEST")
        storage.close()
    [(path, headers)] = heard
    assert path == "/bucket/run/LATEST"
    assert "Credential=me/" in headers["Authorization"]
