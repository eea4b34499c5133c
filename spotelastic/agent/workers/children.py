"""Keeps track of the zygote's children, and ends the processes that they leave behind.

The zygote is the subreaper of everything below it, and so adopts each orphan, detached ones too.
What a worker leaves behind is ended with the worker; detached processes end with the node's last
worker. After a SIGTERM these get one as well, and have until the agent orders SIGKILL.

Cleaners of shared memory (`linux.cleans`) are left alone: they end by themselves when everything
that they clean up after has ended. Only at the end of this process are they awaited, then killed.
"""

import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from spotelastic.agent.workers.failure import reported
from spotelastic.linux import CLEAN_WITHIN, children, cleans, family, reaped
from spotelastic.signals import send

LOAD_WITHIN = 1.0
"""Seconds that the system may take to load a program before it is ended unexamined."""


News = dict[str, object]
"""What the agent is told of a child: `events.Exited`, or `events.WorkerFailing`, without its tag.

The end of one that was not `gone` is told a second time: now nothing that it left behind lives.
"""


@dataclass(slots=True)
class _Child:
    id: str
    worker: bool
    errors: str = ""
    """The file in which it tells of a failure."""
    failing: bool = False
    code: int | None = None
    told: bool = False
    asked: set[int] | None = None
    """SIGTERM came first, and has been sent to these of its heirs; None: they are killed."""


@dataclass(slots=True)
class Children:
    """Tracks all children. Used by one thread, which gets SIGCHLD."""

    _known: dict[int, _Child] = field(default_factory=dict)
    _others: set[int] = field(default_factory=lambda: set(children(os.getpid())))
    """Processes that preloaded modules have started, which stay."""
    _loading: dict[int, float] = field(default_factory=dict)
    """Orphans whose program is being loaded, and since when."""

    @property
    def looks_again(self) -> float | None:
        """Seconds after which to settle again although no child has ended.

        No event reports that a program was loaded.
        """
        return 0.01 if self._loading else None

    def add(self, pid: int, name: str, *, worker: bool, errors: str = "") -> None:
        self._known[pid] = _Child(name, worker, errors)

    def failing(self) -> list[News]:
        """Return the children that have reported a failure since the last call."""
        news = list[News]()
        for child in self._known.values():
            untold = child.errors and not child.failing and child.code is None
            if untold and (code := reported(child.errors)):
                child.failing = True
                news.append({"id": child.id, "code": code})
        return news

    def end(self, names: Sequence[str], sig: int) -> None:
        """Send SIGTERM or SIGKILL to the child and to the processes that it leaves behind.

        With SIGTERM, these get it once the child has ended. SIGKILL goes to all of them.
        """
        for pid, child in self._known.items():
            if child.id in names:
                gently = sig == signal.SIGTERM
                child.asked = (child.asked or set()) if gently else None
                if child.code is None:
                    send(pid, sig)

    def settle(self) -> list[News]:
        """Reaps children that have ended, and ends what they left behind.

        Returns news for the agent.
        """
        self._reap()
        self._loading = {pid: at for pid, at in self._loading.items() if cleans(pid) is None}
        ended = {pid: child for pid, child in self._known.items() if child.code is not None}
        if not ended:
            return []
        heirs = self._heirs(ended)
        working = any(child.worker and child.code is None for child in self._known.values())
        news = list[News]()
        for pid, child in ended.items():
            left = list(heirs.get(pid, ()))
            if child.worker and not working:
                left += heirs.get(0, ())
            self._end_heirs(child, left)
            if not left:
                del self._known[pid]
            if not left or not child.told:
                child.told = True
                news.append({"id": child.id, "code": child.code, "gone": not left})
        return news

    def end_all(self, wake: int, within: float) -> None:
        """Kills and reaps everything below this process. `wake` is readable at SIGCHLD.

        Cleaners are given time. Those of preloaded modules are left alone: they wait for this
        process's own end.
        """
        begun = time.monotonic()
        while True:
            self._reap()
            below = [pid for pid in family(os.getpid())[1:] if not self._stays(pid)]
            waited = time.monotonic() - begun
            if not below or waited >= within:
                return
            for pid in below:
                if waited >= CLEAN_WITHIN or cleans(pid) is False:
                    send(pid, signal.SIGKILL)
            if select.select([wake], [], [], 0.1)[0]:
                os.read(wake, 4096)

    def _reap(self) -> None:
        for pid, code in reaped():
            if pid in self._known:
                self._known[pid].code = code

    def _heirs(self, ended: dict[int, _Child]) -> dict[int, list[int]]:
        """Return orphans by the ended child whose session they are in.

        0 stands for sessions of their own.
        """
        found: dict[int, list[int]] = {}
        for pid in children(os.getpid()):
            if pid in self._known or pid in self._others:
                continue
            session = _session(pid)
            if session in ended or session not in self._known:
                heirs = [each for each in family(pid) if not cleans(each)]
                found.setdefault(session if session in ended else 0, []).extend(heirs)
        return found

    def _loads(self, pid: int) -> bool:
        """Whether its program is still being loaded: it may turn out to be a cleaner."""
        if cleans(pid) is not None:
            return False
        now = time.monotonic()
        self._loading[pid] = since = self._loading.get(pid, now)
        return now < since + LOAD_WITHIN

    def _stays(self, pid: int) -> bool:
        return pid in self._others and bool(cleans(pid))

    def _end_heirs(self, child: _Child, heirs: Sequence[int]) -> None:
        for pid in heirs:
            if self._loads(pid):
                continue
            if child.asked is None:
                send(pid, signal.SIGKILL)
            elif pid not in child.asked:
                child.asked.add(pid)
                send(pid, signal.SIGTERM)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
