"""Two living jobs never share one root; the nodes of one job do, and a killed job gives way."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from spotelastic_checkpoints.commit import tenancy
from spotelastic_checkpoints.commit.tenancy import (
    KEY,
    InUse,
    Tenancy,
    TenancyPace,
    Tenant,
    tenant_here,
)
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import open_storage
from support.draws import soaked
from support.processes.patience import PATIENT
from support.saving.s3_servers import s3_endpoint, use_s3
from support.store.etcd_members import wait_until
from support.store.store_doubles import Interposed

__all__ = ["s3_endpoint"]
UNHURRIED = TenancyPace(answer_within=PATIENT)
"""Nobody who lives is taken for dead, however slowly it answers."""
Start = Callable[..., Tenancy]


@pytest.fixture(params=["folder", *soaked(["s3"])])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path)
    return f"s3://{use_s3(monkeypatch, request.getfixturevalue('s3_endpoint'))}/run"


@pytest.fixture
def start() -> Iterator[Start]:
    """As on another machine: nobody sees the process."""
    started: list[Tenancy] = []

    def begin(
        url: str, command: str = "a.py", machine: str = "elsewhere", **more: object
    ) -> Tenancy:
        mine = msgspec.structs.replace(tenant_here("default", command), machine=machine)
        for name in ("group", "meets"):
            if name in more:
                mine = msgspec.structs.replace(mine, **{name: more.pop(name)})
        more.setdefault("displaced", lambda tenant: None)
        more.setdefault("pace", UNHURRIED)
        opened = more.pop("opened", lambda: open_storage(url))
        started.append(Tenancy(opened, mine, **more))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for each in started:
        each.release(over=False)


def written(root: Storage) -> Tenant:
    blob = root.get(KEY)
    assert blob is not None
    return msgspec.json.decode(blob.data, type=Tenant)


def test_a_job_that_lives_answers_and_one_that_has_ended_gives_way(url: str, start: Start) -> None:
    first = start(url, "a.py --steps 40")
    assert first.settle(PATIENT) == "first"
    with pytest.raises(InUse, match="--steps 40 on"):
        start(url, "b.py").settle(PATIENT)
    first.release(over=True)
    assert start(url, "b.py").settle(PATIENT) == "first"
    assert written(open_storage(url)).command == "b.py"


def test_one_that_is_silent_gives_way_and_ends_when_it_comes_back(url: str, start: Start) -> None:
    told: list[Tenant] = []
    goes_on, is_silent = threading.Event(), threading.Event()
    goes_on.set()

    def hangs(name: str, call: Callable[[], object]) -> object:
        if not goes_on.is_set():
            is_silent.set()
            assert goes_on.wait(PATIENT)
        return call()

    def opened() -> Storage:
        return Interposed(open_storage(url), hangs)

    often = replace(UNHURRIED, look_every=0.05)
    first = start(url, "a.py", displaced=told.append, opened=opened, pace=often)
    assert first.settle(PATIENT) == "first"
    goes_on.clear()
    assert is_silent.wait(PATIENT)
    second = start(url, "b.py", pace=replace(often, answer_within=0.5))
    # It waits no longer than the pace says, which a slow store may exceed.
    wait_until(lambda: second.settle(PATIENT) == "first", "it is replaced")
    goes_on.set()
    wait_until(lambda: [tenant.command for tenant in told] == ["b.py"], "it is told")
    with pytest.raises(InUse, match="another job uses it: b"):
        start(url, "c.py").settle(PATIENT)


def test_who_is_displaced_hears_of_it(tmp_path: Path, start: Start) -> None:
    told: list[Tenant] = []
    first = start(str(tmp_path), displaced=told.append, pace=TenancyPace(look_every=0.05))
    assert first.settle(PATIENT) == "first"
    other = msgspec.structs.replace(tenant_here("default", "b.py"), machine="elsewhere")
    (tmp_path / KEY).write_bytes(msgspec.json.encode(other))
    wait_until(lambda: [tenant.command for tenant in told] == ["b.py"], "it is told")


HOLD = """
import sys
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.commit.tenancy import Tenancy, tenant_here
held = Tenancy(lambda: open_storage(sys.argv[1]), tenant_here("default", "a.py"), displaced=print)
print(held.settle(60), flush=True)
sys.stdin.read()
"""


def test_a_process_of_this_machine_is_looked_at(tmp_path: Path, start: Start) -> None:
    here = {"machine": tenancy.machine(), "pace": TenancyPace(answer_within=3600.0)}
    """Nobody may have to wait for an answer."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "first\n"
        os.kill(holder.pid, 19)  # it lives, although it does not answer
        with pytest.raises(InUse, match="another job uses it: a"):
            start(str(tmp_path), **here).settle(PATIENT)
        holder.kill()
    assert start(str(tmp_path), **here).settle(PATIENT) == "first"


def test_nodes_of_one_job_join_when_it_is_prepared(url: str, start: Start) -> None:
    meets = {"group": "g", "meets": ("a:1",)}
    first = start(url, **meets)
    assert first.settle(PATIENT) == "first"
    waiting = start(url, **meets)
    same_etcd, emptied = (
        start(url, group="g", meets=("b:1",)),
        start(url, group="h", meets=("a:1",)),
    )
    wait_until(lambda: written(open_storage(url)).question, "it asks")
    with ThreadPoolExecutor(3) as pool:
        settling = [pool.submit(e.settle, PATIENT) for e in (waiting, same_etcd, emptied)]
        assert not any(each.done() for each in settling)
        first.prepared()
        assert {each.result(PATIENT) for each in settling} == {"joined"}
    with pytest.raises(InUse):
        start(url, group="other", meets=("c:1",)).settle(PATIENT)
    first.release(over=False)  # the others answer
    with pytest.raises(InUse):
        start(url, group="other", meets=("c:1",)).settle(PATIENT)
    live = start(url, **meets, others_live=lambda: True)
    assert live.settle(PATIENT) == "joined"


def test_of_many_that_come_at_once_one_is_first(tmp_path: Path, start: Start) -> None:
    pace = replace(UNHURRIED, look_every=0.05)
    gate, outcomes = threading.Barrier(8), list[str]()

    def come() -> None:
        gate.wait()
        try:
            outcomes.append(start(str(tmp_path), pace=pace).settle(PATIENT))
        except InUse:
            outcomes.append("refused")

    threads = [threading.Thread(target=come) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(outcomes) == ["first", *["refused"] * 7]


def test_a_root_that_does_not_answer_is_taken_later(tmp_path: Path, start: Start) -> None:

    from spotelastic_checkpoints.errors import StorageUnavailable

    there = threading.Event()

    def opened() -> Storage:
        if not there.is_set():
            raise StorageUnavailable("away")
        return open_storage(str(tmp_path))

    told: list[Tenant] = []
    mine = tenant_here("default", "late.py")
    late = Tenancy(opened, mine, displaced=told.append)
    assert late.settle(0.0) == "unknown"
    assert start(str(tmp_path), "first.py").settle(PATIENT) == "first"
    there.set()
    wait_until(lambda: told, "it hears of the other one")
    late.release(over=True)
    assert written(open_storage(str(tmp_path))).command == "first.py"
