"""Runs the operator: it watches the `ElasticJob`s of one namespace, and keeps what they ask for.

What a watch tells only says when to look. Each look sees everything anew, and each step may be
repeated, so the operator may be killed anywhere. Only the holder of the Lease takes steps.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic.client.operator.look import carry_out, look
from spotelastic.client.operator.operator_decision import OperatorPolicy, decide
from spotelastic.client.operator.resource import JobResource
from spotelastic.client.operator.told import JobEvent
from spotelastic.client.progress import Say
from spotelastic.clock import Clock, steady, wall
from spotelastic.errors import SpotelasticError
from spotelastic.errors import told as error_text
from spotelastic.kubernetes.elastic_job import KIND
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.lock import LeaseLock

LEASE = "spotelastic-operator"
LOST = 1
WATCH_AGAIN = 2.0
"""Seconds after which a watch that has failed is tried again."""
LONGEST_PAUSE = 60.0


@dataclass(slots=True)
class LookAgenda:
    """When each resource is looked at next. Thread-safe."""

    clock: Clock = steady
    _due: dict[str, float] = field(default_factory=dict)
    _versions: dict[str, tuple[object, ...]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, found: Manifest) -> None:
        """Take note of a resource: it is due, if it is new, was changed, or is deleted.

        A changed status is the operator's own doing.
        """
        metadata = found["metadata"]
        keys = ("uid", "generation", "deletionTimestamp")
        version = tuple(metadata.get(key) for key in keys)
        with self._changed:
            if self._versions.get(metadata["name"]) != version:
                self._versions[metadata["name"]] = version
                self._due[metadata["name"]] = self.clock()
                self._changed.notify()

    def put(self, name: str, seconds: float) -> None:
        """Look at the resource after so many seconds, unless it is due before."""
        with self._changed:
            self._due.setdefault(name, self.clock() + seconds)

    def forget(self, name: str) -> None:
        """Look no more at a resource that is gone."""
        with self._changed:
            self._versions.pop(name, None)

    def take(self, within: float) -> str | None:
        """Return a resource that is due, and take it from the agenda; wait for one if need be."""
        with self._changed:
            now = self.clock()
            first = min(self._due, key=self._due.__getitem__, default=None)
            wait = within if first is None else min(within, self._due[first] - now)
            if wait > 0:
                self._changed.wait(wait)
            now = self.clock()
            first = min(self._due, key=self._due.__getitem__, default=None)
            if first is None or self._due[first] > now:
                return None
            del self._due[first]
            return first


class JobOperator:
    """The operator of one namespace."""

    def __init__(
        self, api: KubeApi, image: str, say: Say, policy: OperatorPolicy | None = None
    ) -> None:
        """`image` is that of the control pods."""
        self._api, self._image, self._say = api, image, say
        self._policy = policy or OperatorPolicy()
        self._agenda = LookAgenda()
        self._failures: dict[str, int] = {}

    def run(self, over: threading.Event, alive: Path | None = None) -> None:
        """Look after the resources until `over` is set. `alive` is a file that says so."""
        watching = threading.Thread(
            target=self._watch, args=(over,), name="operator-watch", daemon=True
        )
        watching.start()
        while not over.is_set():
            if alive is not None:
                alive.touch()
            name = self._agenda.take(1.0)
            if name is not None:
                again = self.look_at(name)
                if again is not None:
                    self._agenda.put(name, again)

    def look_at(self, name: str) -> float | None:
        """Look at one resource, and do what is to be done.

        Returns the seconds until the next look; None if the resource is gone.
        """
        found = None
        try:
            found = self._api.get(KIND, name)
            if found is None:
                self._agenda.forget(name)
                return None
            at, now = look(self._api, found, self._image), wall()
            decision = decide(at.seen, now, self._policy)
            carry_out(self._api, at, decision, now, self._say)
        except SpotelasticError as error:
            count = self._failures[name] = self._failures.get(name, 0) + 1
            pause = min(LONGEST_PAUSE, 2.0**count)
            self._say(f"{name}: {error}; tries again in {pause:.0f} s")
            if found is not None:
                self._tell_failure(JobResource.read(found), str(error))
            return pause
        self._failures.pop(name, None)
        return decision.look_again

    def _tell_failure(self, its: JobResource, text: str) -> None:
        """Tell people what keeps the operator from its work, once."""
        event = JobEvent.of(its, "Failed", text, (its.generation, text))
        with suppress(SpotelasticError):  # it was told before, or nothing can be told
            self._api.create(event.manifest(its, self._api.namespace, wall()))

    def _watch(self, over: threading.Event) -> None:
        told = ""
        while not over.is_set():
            try:
                for found in self._api.watch(KIND):
                    told = ""
                    self._agenda.tell(found)
            except Exception as error:  # the next watch may succeed
                text = error_text(error)
                if text != told:
                    self._say(text)
                told = text
            over.wait(WATCH_AGAIN)


def serve(
    api: KubeApi, me: str, image: str, over: threading.Event, say: Say, alive: Path | None = None
) -> None:
    """Run the operator as the pod `me` while it holds the Lease, until `over` is set.

    Ends the process at once if the Lease is lost: another operator may take steps then.
    """
    lock = LeaseLock(api, "", me, name=LEASE)
    if not lock.acquire(over, say):
        return
    say(f"looks after the ElasticJobs in the namespace {api.namespace}")
    keeper = threading.Thread(target=_keep, args=(lock, over, say), name="lease", daemon=True)
    keeper.start()
    try:
        JobOperator(api, image, say).run(over, alive)
    finally:
        over.set()
        keeper.join()
        lock.release()


def _keep(lock: LeaseLock, over: threading.Event, say: Callable[[str], None]) -> None:
    """Renew the Lease. Whatever ends this before `over` is set ends the process."""
    kept = False
    try:
        kept = lock.keep(over, lambda _: None)
    finally:
        if not kept:
            say(f"the Lease {LEASE} could not be renewed: the operator ends")
            os._exit(LOST)
