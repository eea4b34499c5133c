"""Which job uses a root, so that two living jobs never share one.

    <root>/in-use    who the tenant is, the last question to it, and its last answer

Who comes asks the tenant whether it lives, and the tenant answers within a second or two. One that
stays silent is dead, or cut off from the store, and gives way; it ends when it finds that out. No
clock is compared, and a job that was killed needs no hand: on its own machine its end is seen at
once. All changes are swaps, so that of two who come at once one is refused.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from spotelastic_checkpoints.errors import CheckpointsError, StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.port import Storage

KEY = "in-use"
LOOK_EVERY = 1.0
"""Seconds between a tenant's looks for a question."""
ANSWER_WITHIN = 8.0
"""Seconds after which a tenant that was asked is taken to be dead."""
KNOWN_WITHIN = 3 * ANSWER_WITHIN
ASK_EVERY = 0.2
RELEASE_WITHIN = 5.0


class Tenant(msgspec.Struct, frozen=True):
    """A job, as the one that took the root for it wrote it down."""

    job: str
    """New with every life of a job."""
    group: str
    """Of all nodes that meet at one place: known to each of them before it looks here."""
    run: str
    meets: tuple[str, ...]
    """Where its nodes meet; empty: it has one node."""
    command: str
    host: str
    machine: str
    pid: int
    started: int
    """Of the process: its pid may be another's later."""
    begun_at: float
    ready: bool = False
    """What there was to prepare is prepared: other nodes of the job may begin."""
    question: str = ""
    answer: str = ""
    over: bool = False


class InUse(CheckpointsError):
    """Another job lives there."""

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(f"another job uses it: {tenant.command} on {tenant.host}")
        self.tenant = tenant


def tenant_here(run: str, command: str, *, group: str = "", meets: tuple[str, ...] = ()) -> Tenant:
    """For a job that this process begins or joins."""
    return Tenant(
        job=secrets.token_hex(8),
        group=group or secrets.token_hex(8),
        run=run,
        meets=meets,
        command=command,
        host=socket.gethostname(),
        machine=machine(),
        pid=os.getpid(),
        started=_started(os.getpid()),
        begun_at=time.time(),
    )


def machine() -> str:
    """Of this boot of this machine, or of this container: where a pid means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(8)


def _started(pid: int) -> int:
    """When the process began, in ticks of the machine; 0: there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _lives_here(tenant: Tenant) -> bool | None:
    """Whether the process that took the root lives; None: it is elsewhere, or this very one, which
    may have forgotten."""
    if tenant.machine != machine() or tenant.pid == os.getpid():
        return None
    return _started(tenant.pid) == tenant.started != 0


Settled = Literal["first", "joined", "unknown"]


class Tenancy:
    """A thread that takes the root, then answers for as long as this process uses it.

    `others_live` tells, without asking the root, whether nodes of this job train. `displaced` is
    called, in the thread, when another job has the root after all.
    """

    def __init__(
        self,
        open_root: Callable[[], Storage],
        mine: Tenant,
        *,
        displaced: Callable[[Tenant], None],
        others_live: Callable[[], bool] = lambda: False,
    ) -> None:
        self._open = open_root
        self._root: Storage | None = None
        self._mine, self._others_live, self._displaced = mine, others_live, displaced
        self._job = ""
        """The one whose tenant we are."""
        self._settled: Settled = "unknown"
        self._error: CheckpointsError | None = None
        self._went_on = False
        """Nobody waits for us any more."""
        self._heard, self._known, self._end = (threading.Event() for _ in range(3))
        self._prepared = self._over = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="tenancy", daemon=True)
        self._thread.start()

    def settle(self, within: float) -> Settled:
        """Waits for as long as the root answers, but no longer than `within` for its first answer.

        "first": nobody else is there, and `prepared` has to be called; "unknown": the root does not
        answer, and is taken when it does. Raises `InUse`, and `StorageRefused`.
        """
        if self._heard.wait(within):
            self._known.wait(KNOWN_WITHIN)
        with self._lock:
            self._went_on = True
            if self._error is not None:
                raise self._error
            return self._settled

    def prepared(self) -> None:
        self._prepared = True

    def release(self, *, over: bool) -> None:
        """`over`: the job has ended, and not only this node of it."""
        self._over = over
        self._end.set()
        self._thread.join(RELEASE_WITHIN)

    # -- the thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._end.is_set():
            try:
                if self._job:
                    self._look()
                else:
                    self._take()
            except StorageUnavailable:
                pass
            except (InUse, StorageRefused) as error:
                if self._ends(error):
                    return
            self._end.wait(LOOK_EVERY)
        if self._over and self._job:
            with suppress(CheckpointsError):
                self._leave()

    def _ends(self, error: CheckpointsError) -> bool:
        """A store that refuses what it took before may take it again: rights that are renewed."""
        with self._lock:
            if not self._went_on:
                self._error = error
                self._heard.set()
                self._known.set()
                return True
        if isinstance(error, InUse):
            self._displaced(error.tenant)
            return True
        return False

    def _settle(self, how: Settled) -> None:
        with self._lock:
            self._settled = how
        self._known.set()

    def _take(self) -> None:
        while not (self._job or self._end.is_set()):
            tenant, etag = self._read()
            self._heard.set()
            if tenant is None or tenant.over or tenant.job == self._mine.job:
                if self._written(self._mine, etag):
                    self._job = self._mine.job
                    self._settle("first")
                continue
            ours, lives = self._is_ours(tenant), _lives_here(tenant)
            if ours and tenant.ready and (lives or self._others_live()):
                self._join(tenant)
                return
            if lives and not ours:
                raise InUse(tenant)
            if lives is False and not tenant.meets:
                self._replace(tenant)
                continue
            self._ask(tenant, ours=ours)

    def _ask(self, tenant: Tenant, *, ours: bool) -> None:
        """Returns when it has to be looked at again: it is another, or it was replaced."""
        question = secrets.token_hex(8)
        before, etag = self._read()
        if before != tenant or not self._written(
            msgspec.structs.replace(tenant, question=question), etag
        ):
            return
        give_up = time.monotonic() + ANSWER_WITHIN
        while not self._end.wait(ASK_EVERY):
            late = time.monotonic() >= give_up
            now, _ = self._read()
            if now is None or now.job != tenant.job or now.over:
                return
            if now.answer != tenant.answer:
                if not ours:
                    raise InUse(now)
                if now.ready:
                    self._join(now)
                return
            if late:
                self._replace(now)
                return

    def _replace(self, tenant: Tenant) -> None:
        """Unless it has answered meanwhile; the next look tells whether it came through."""
        now, etag = self._read()
        if now == tenant:
            self._written(self._mine, etag)

    def _join(self, tenant: Tenant) -> None:
        self._job = tenant.job
        self._settle("joined")

    def _look(self) -> None:
        tenant, etag = self._read()
        if tenant is None:  # somebody has emptied the root
            self._written(msgspec.structs.replace(self._mine, job=self._job, ready=True), etag)
            return
        if tenant.job != self._job:
            if not self._is_ours(tenant):
                raise InUse(tenant)
            self._job = tenant.job  # another node found this one silent
        ready = tenant.ready or (self._prepared and self._job == self._mine.job)
        now = msgspec.structs.replace(tenant, ready=ready, answer=tenant.question, over=False)
        if now != tenant:
            self._written(now, etag)

    def _leave(self) -> None:
        tenant, etag = self._read()
        if tenant is not None and tenant.job == self._job:
            self._written(msgspec.structs.replace(tenant, over=True), etag)

    def _is_ours(self, tenant: Tenant) -> bool:
        meets = tenant.run == self._mine.run and not set(self._mine.meets).isdisjoint(tenant.meets)
        return tenant.group == self._mine.group or meets

    def _read(self) -> tuple[Tenant | None, str]:
        if self._root is None:
            self._root = self._open()
        blob = self._root.get(KEY)
        if blob is None:
            return None, ""
        try:
            return msgspec.json.decode(blob.data, type=Tenant), blob.etag
        except msgspec.MsgspecError as error:
            raise StorageRefused(f"{self._root.url}/{KEY} is not ours: {error}") from None

    def _written(self, tenant: Tenant, etag: str) -> bool:
        assert self._root is not None
        data = msgspec.json.encode(tenant)
        return self._root.swap(KEY, data, etag) if etag else self._root.create(KEY, data)
