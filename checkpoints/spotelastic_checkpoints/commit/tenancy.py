"""Records which job uses a storage, so that two living jobs never share one.

    <root>/in-use    who the tenant is, the last question to it, and its last answer

A job that arrives writes a question into the object, and the tenant answers within a second or two.
A tenant that stays silent is dead or cut off from the store, and is replaced. If it lives after
all, it ends when it finds that out. No clocks are compared. A job that was killed leaves nothing to
clean up, and on its own machine its end is seen at once. All changes are compare-and-swaps, so that
of two jobs that arrive together one is refused.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from spotelastic_checkpoints import checksummed_json
from spotelastic_checkpoints.errors import CheckpointsError, StorageRefused, StorageUnavailable
from spotelastic_checkpoints.protocol_version import FORMAT, of_newer_format
from spotelastic_checkpoints.storage.object_store import Storage, get_checked

KEY = "in-use"
"""Key of the object, in the storage's root."""
RELEASE_WITHIN = 5.0
"""Seconds that `Tenancy.release` waits for the thread to end."""


@dataclass(frozen=True, slots=True)
class TenancyPace:
    """How often and how long jobs look for each other, in seconds."""

    look_every: float = 1.0
    """Seconds between a tenant's looks for a question."""
    ask_every: float = 0.2
    """Seconds between looks for the answer to a question."""
    answer_within: float = 8.0
    """Seconds after which a tenant that did not answer a question is taken to be dead."""

    @property
    def known_within(self) -> float:
        """Seconds that `Tenancy.settle` waits for a result once the storage has answered."""
        return 3 * self.answer_within


PACE = TenancyPace()


class Tenant(msgspec.Struct, frozen=True):
    """A job, as it describes itself in the object."""

    job: str
    """A random id, new with every start of a job."""
    group: str
    """An id that all nodes of the job share, and that each knows before it looks at the storage."""
    run: str
    """Name of the run whose checkpoints are stored here."""
    meets: tuple[str, ...]
    """Endpoints through which the job's nodes find each other; empty for a job on one node."""
    command: str
    """Command line of the job, for messages."""
    host: str
    """Host name of the node that took the storage, for messages."""
    machine: str
    """Identifies the machine, or container, in which `pid` is valid: see `machine()`."""
    pid: int
    started: int
    """Start time of the process in clock ticks since boot: a later process may get the same pid."""
    begun_at: float
    """When the job took the storage (epoch seconds)."""
    ready: bool = False
    """Whether the storage is prepared, so that other nodes of the job may begin."""
    question: str = ""
    """The last question that another job asked: a random id."""
    answer: str = ""
    """The last question that the tenant answered."""
    over: bool = False
    """Whether the job has ended."""
    version: int = FORMAT


DAMAGED = Tenant("", "", "", (), "", "", "", 0, 0, 0.0)
"""Stands for a tenant whose object is damaged. It is asked, as any other: a job that lives writes
the object anew, and one that does not answer is replaced.
"""


class InUse(CheckpointsError):
    """Another living job uses the storage."""

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(f"another job uses it: {tenant.command} on {tenant.host}")
        self.tenant = tenant


def tenant_here(run: str, command: str, *, group: str = "", meets: tuple[str, ...] = ()) -> Tenant:
    """Return the tenant for a job that this process begins or joins."""
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
    """Return an id of this boot of this machine, or of this container.

    Pids are compared only within it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(8)


def _started(pid: int) -> int:
    """Return when the process began, in clock ticks since boot; 0 where it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _lives_here(tenant: Tenant) -> bool | None:
    """Return whether the process that took the storage lives; None where that cannot be seen.

    It cannot be seen on another machine. Nor where it is this very process, which may have given
    the storage up before.
    """
    if tenant.machine != machine() or tenant.pid == os.getpid():
        return None
    return _started(tenant.pid) == tenant.started != 0


Settled = Literal["first", "joined", "unknown"]
"""How this node got the storage: as its first user, by joining its own job, or not yet."""


class Tenancy:
    """Takes the storage for a job, then answers as its tenant while the process uses it.

    All of this happens in a thread.
    """

    def __init__(
        self,
        open_root: Callable[[], Storage],
        mine: Tenant,
        *,
        displaced: Callable[[Tenant], None],
        others_live: Callable[[], bool] = lambda: False,
        pace: TenancyPace = PACE,
    ) -> None:
        """Start the thread.

        `others_live` tells, without asking the storage, whether other nodes of this job train.
        `displaced` is called in the thread when another job turns out to have the storage.
        """
        self._open = open_root
        self._pace = pace
        self._root: Storage | None = None
        self._mine, self._others_live, self._displaced = mine, others_live, displaced
        self._job = ""
        """Id of the job that this process answers for; empty until the storage was taken or joined.
        """
        self._settled: Settled = "unknown"
        self._error: CheckpointsError | None = None
        self._went_on = False
        """Whether `settle` has returned, so that errors are no longer raised there."""
        self._heard, self._known, self._end = (threading.Event() for _ in range(3))
        self._prepared = self._over = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="tenancy", daemon=True)
        self._thread.start()

    def settle(self, within: float) -> Settled:
        """Wait until it is known how the storage was taken.

        Waits at most `within` seconds for the first answer. Returns "first" where no other node
        uses it, in which case `prepared` has to be called; "joined" where other nodes of this job
        do; and "unknown" where the store does not answer and the thread goes on trying. Raises
        `InUse` or `StorageRefused`.
        """
        if self._heard.wait(within):
            self._known.wait(self._pace.known_within)
        with self._lock:
            self._went_on = True
            if self._error is not None:
                raise self._error
            return self._settled

    def prepared(self) -> None:
        """Declare the storage prepared: other nodes of the job may begin."""
        self._prepared = True

    def release(self, *, over: bool) -> None:
        """Stop answering.

        `over` says that the whole job has ended, and not only this node of it.
        """
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
            except Exception as error:  # an answer that nobody has foreseen: the thread goes on
                why = f"the storage cannot be used: {type(error).__name__}: {error}"
                if self._ends(StorageRefused(why)):
                    return
            self._end.wait(self._pace.look_every)
        if self._over and self._job:
            with suppress(CheckpointsError):
                self._leave()

    def _ends(self, error: CheckpointsError) -> bool:
        """Handle an error, and return whether the thread ends.

        A store that refuses now what it allowed before may allow it again, when rights are renewed.
        """
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
        """Ask the tenant, and replace it if it does not answer in time.

        Returns when the object has to be looked at again: it was changed or replaced. Raises
        `InUse` when another job answers.
        """
        question = secrets.token_hex(8)
        before, etag = self._read()
        if before != tenant or not self._written(
            msgspec.structs.replace(tenant, question=question), etag
        ):
            return
        give_up = time.monotonic() + self._pace.answer_within
        while not self._end.wait(self._pace.ask_every):
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
        """Replace the tenant unless it has changed since.

        The next look tells whether that succeeded.
        """
        now, etag = self._read()
        if now == tenant:
            self._written(self._mine, etag)

    def _join(self, tenant: Tenant) -> None:
        self._job = tenant.job
        self._settle("joined")

    def _look(self) -> None:
        tenant, etag = self._read()
        if tenant is None or not tenant.job:  # The object was deleted by hand, or is damaged.
            answer = tenant.question if tenant else ""
            mine = msgspec.structs.replace(self._mine, job=self._job, ready=True, answer=answer)
            self._written(mine, etag)
            return
        if tenant.job != self._job:
            if not self._is_ours(tenant):
                raise InUse(tenant)
            # Another node of this job found this one silent and replaced it.
            self._job = tenant.job
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
        blob = get_checked(self._root, KEY, checksummed_json.is_readable)
        if blob is None:
            return None, ""
        if newer := of_newer_format(blob.data, f"{self._root.url}/{KEY}"):
            raise StorageRefused(newer)
        try:
            return checksummed_json.decode(blob.data, Tenant), blob.etag
        except msgspec.MsgspecError:
            return DAMAGED, blob.etag

    def _written(self, tenant: Tenant, etag: str) -> bool:
        assert self._root is not None
        data = checksummed_json.encode(tenant)
        return self._root.swap(KEY, data, etag) if etag else self._root.create(KEY, data)
