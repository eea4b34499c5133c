"""Runs the operator: it looks at the `ElasticJob`s of one namespace, and keeps what they ask for.

The list only says when to look. Each look sees everything anew, and each step may be
repeated, so the operator may be killed anywhere. Only the holder of the Lease takes steps.
"""

import os
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

from spotelastic.client.operator.look import carry_out, look
from spotelastic.client.operator.operator_decision import decide
from spotelastic.client.operator.resource import JobResource
from spotelastic.client.operator.tainted_nodes import TaintedNodes
from spotelastic.client.operator.told import HINDERED, hindered
from spotelastic.client.progress import Say
from spotelastic.clock import steady, wall
from spotelastic.errors import SpotelasticError
from spotelastic.kubernetes.elastic_job import KIND
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.lock import LeaseLock

LEASE = "spotelastic-operator"
LOST = 1
LONGEST_PAUSE = 60.0
LIST_EVERY = 1.0


class JobOperator:
    """The operator of one namespace."""

    def __init__(
        self, api: KubeApi, image: str, say: Say, nodes: TaintedNodes | None = None
    ) -> None:
        """`image` is that of the control pods. `nodes`: those whose taints are notices, if any."""
        self._api, self._image, self._say, self._nodes = api, image, say, nodes
        self._due: dict[str, tuple[object, float]] = {}
        """By name: what a resource was when it was looked at, and when it is looked at next."""
        self._failures: dict[str, int] = {}

    def run(self, over: threading.Event, alive: Path | None = None) -> None:
        """Look after the resources until `over` is set. `alive` is a file that says so."""
        told = ""
        while not over.wait(LIST_EVERY):
            if alive is not None:
                alive.touch()
            try:
                listed, text = self._api.found(KIND, {}), ""
            except SpotelasticError as error:
                listed, text = [], str(error)
            if text != told:
                self._say(text or "the ElasticJobs are listed again")
            told = text
            for found in listed:
                self._look_if_due(found["metadata"])
            if self._nodes is not None:
                self._nodes.look()

    def _look_if_due(self, metadata: Manifest) -> None:
        """Look at a resource whose time has come, or that is new, was changed, or is deleted.

        A changed status is the operator's own doing.
        """
        name = metadata["name"]
        version = [metadata.get(key) for key in ("uid", "generation", "deletionTimestamp")]
        known, due = self._due.get(name, (None, 0.0))
        if version != known or steady() >= due:
            again = self.look_at(name)
            self._due[name] = (version, steady() + (again or 0.0))

    def look_at(self, name: str) -> float | None:
        """Look at one resource, and do what is to be done.

        Returns the seconds until the next look; None if the resource is gone.
        """
        found = None
        try:
            found = self._api.get(KIND, name)
            if found is None:
                return None
            at, now = look(self._api, found, self._image), wall()
            decision = decide(at.seen, now)
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
        """Tell people what keeps the operator from its work: in the status, and as one Event."""
        event = hindered(its, text)
        said = {"reason": HINDERED, "message": event.message}
        with suppress(SpotelasticError):  # nothing can be told
            self._api.patch(KIND, its.name, {"status": said}, "Status")
        with suppress(SpotelasticError):  # it was told before, or nothing can be told
            self._api.create(event.manifest(its, self._api.namespace, wall()))


def serve(
    api: KubeApi,
    me: str,
    image: str,
    over: threading.Event,
    say: Say,
    alive: Path | None = None,
    *,
    node_notices: bool = False,
) -> None:
    """Run the operator as the pod `me` while it holds the Lease, until `over` is set.

    With `node_notices`, taints of nodes are notices for the pods on them. Ends the process at once
    if the Lease is lost: another operator may take steps then.
    """
    lock = LeaseLock(api, "", me, name=LEASE)
    if not lock.acquire(over, say):
        return
    say(f"looks after the ElasticJobs in the namespace {api.namespace}")
    keeper = lock.keeping(over, lambda _: None, partial(_end, say))
    try:
        nodes = TaintedNodes(api, say) if node_notices else None
        JobOperator(api, image, say, nodes).run(over, alive)
    finally:
        over.set()
        keeper.join()
        lock.release()


def _end(say: Say) -> None:
    say(f"the Lease {LEASE} could not be renewed: the operator ends")
    os._exit(LOST)
