"""Keeps a lease alive from a thread, and reports when it is lost.

A lease counts as lost when the store says that it is gone, or when it could not be refreshed until
it may have run out. That time is counted on the steady clock from *before* the last successful
refresh was sent. So this process never believes in a lease that others have seen end. The reverse
can happen, because etcd extends all leases when its leader changes. After a loss the old lease may
live on for a while, and its keys with it.

`Keeper` decides, without a thread. `Session` runs it.
"""

import contextlib
import threading
from collections.abc import Callable

from spotelastic.clock import Clock, steady
from spotelastic.errors import Unavailable
from spotelastic.store.port import Store

OnLost = Callable[[str], None]
"""Called with the reason why a lease was lost."""

RETRY = 0.25
"""Seconds between attempts while the store does not answer."""

_JOIN = 5.0


class Keeper:
    """Refreshes one lease. `step` has to be called again after the seconds that it returns."""

    def __init__(self, store: Store, lease: int, ttl: float, granted: float, clock: Clock) -> None:
        self.lease = lease
        self._store = store
        self._ttl = ttl
        self._expires = granted + ttl
        self._clock = clock

    @property
    def holds(self) -> bool:
        """Whether the lease cannot have run out yet."""
        return self._clock() < self._expires

    def first(self) -> float:
        """Return the seconds until the first step."""
        return max(0.0, self._expires - self._ttl * 2 / 3 - self._clock())

    def step(self) -> float | str:
        """Refresh the lease. Returns the seconds until the next step, or why the lease is lost."""
        asked = self._clock()
        if asked >= self._expires:
            return self._lost("the store did not answer in time")
        try:
            ttl = self._store.refresh(self.lease, timeout=self._expires - asked)
        except Unavailable:
            return max(0.0, min(RETRY, self._expires - self._clock()))
        if ttl <= 0:
            return self._lost("it ran out or was revoked")
        self._ttl = ttl
        self._expires = asked + ttl
        return ttl / 3

    def _lost(self, why: str) -> str:
        return f"lease {self.lease:x} is lost: {why}"


class Session:
    """Holds a lease of `ttl` seconds and refreshes it every third of that time from a thread.

    `on_lost` is called in that thread, once per lease, with the reason. Nothing is refreshed then
    until `renew`, which may be called within `on_lost`, or `close`.
    """

    def __init__(self, store: Store, ttl: float, on_lost: OnLost, clock: Clock = steady) -> None:
        self._store = store
        self._ttl = ttl
        self._on_lost = on_lost
        self._clock = clock
        self._wake = threading.Condition()
        self._keeper: Keeper | None = None
        self._lease = 0
        self._closed = False
        self.renew()
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._thread.start()

    @property
    def lease(self) -> int:
        """Id of the lease granted last, whether it is still alive or not."""
        return self._lease

    @property
    def alive(self) -> bool:
        """Whether the lease is held, as far as is known here."""
        return self._keeper is not None

    @property
    def holds(self) -> bool:
        """Whether the lease is held and cannot have run out.

        When the whole process stood still, the thread that reports a loss may not have run yet.
        """
        keeper = self._keeper
        return keeper is not None and keeper.holds

    def renew(self) -> int:
        """Grant a new lease and return its id. The old one runs out; move its keys by a put.

        Raises `Unavailable`, and may then be called again.
        """
        asked = self._clock()
        lease = self._store.grant(self._ttl)
        with self._wake:
            self._keeper = Keeper(self._store, lease, self._ttl, asked, self._clock)
            self._lease = lease
            self._wake.notify_all()
        return lease

    def close(self) -> None:
        """End the thread, and the lease, with which its keys are deleted."""
        with self._wake:
            self._closed = True
            held, self._keeper = self._keeper, None
            self._wake.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN)
        if held is not None:
            with contextlib.suppress(Unavailable):  # The lease runs out by itself.
                self._store.revoke(held.lease)

    def _run(self) -> None:
        while (keeper := self._next_keeper()) is not None:
            wait = keeper.first()
            while self._rest(keeper, wait):
                verdict = keeper.step()
                if isinstance(verdict, str):
                    self._lose(keeper, verdict)
                    break
                wait = verdict

    def _next_keeper(self) -> Keeper | None:
        """Wait for a lease to refresh. Returns None when closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._keeper is not None)
            return self._keeper

    def _rest(self, keeper: Keeper, seconds: float) -> bool:
        """Wait. Returns False as soon as `keeper` is no longer the current one."""
        with self._wake:
            return not self._wake.wait_for(lambda: self._keeper is not keeper, seconds)

    def _lose(self, keeper: Keeper, why: str) -> None:
        with self._wake:
            if self._keeper is not keeper:
                return  # It was renewed or closed meanwhile.
            self._keeper = None
        self._on_lost(why)
