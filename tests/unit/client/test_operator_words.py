"""What the operator prints: each thing that it does once, however often it looks."""

from collections.abc import Mapping
from typing import cast

from spotelastic.client.kubernetes.cluster_mark import ClusterMark
from spotelastic.client.operator.look import LookedAt, carry_out
from spotelastic.client.operator.operator_decision import ResourceSeen, decide
from spotelastic.client.operator.resource import JobResource
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting


class EndingPods:
    """A namespace whose pods take their time, and that keeps each Event once."""

    namespace = "ml"

    def __init__(self) -> None:
        self.events: list[str] = []

    def create(self, manifest: Manifest) -> Manifest:
        name = manifest["metadata"]["name"]
        if name in self.events:
            raise Conflicting(f"{name} exists")
        self.events.append(name)
        return manifest

    def found(self, kind: str, _: Mapping[str, str]) -> list[Manifest]:
        return [{"metadata": {"name": "gpt-0", "deletionTimestamp": "x"}}] if kind == "Pod" else []

    def delete(self, *_: object) -> None: ...

    def patch(self, *_: object) -> None: ...


def test_an_end_that_takes_many_looks_is_told_once() -> None:
    resource = JobResource("gpt", "u-1", 1, is_deleted=True, is_held=True, spec={}, status={})
    mark = ClusterMark("u-1", "d", 1)
    seen = ResourceSeen(resource, digest="d", root="ours", mark=mark, anything_left=True)
    api, said = EndingPods(), list[str]()
    for now in (100.0, 101.0, 102.0):
        decision = decide(seen, now)
        assert decision.step == "take down"
        carry_out(cast(KubeApi, api), LookedAt(seen), decision, now, said.append)
    assert said.count("gpt: Ending: ends the pods, which have their grace to save") == 1
    assert len(said) == len(api.events) == len(set(said))
