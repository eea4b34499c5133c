"""What Kubernetes says of pods, as instances, members of groups and events."""

from typing import Any

from spotelastic.client.kubernetes.pod_output import lines
from spotelastic.cloud.events import GroupActivity, SpotWarning, StateChange
from spotelastic.cloud.model import DRAINING, IN_SERVICE
from spotelastic.kubernetes.provider import pod_reading
from spotelastic.kubernetes.provider.kube_names import GROUP, KubeNames

ITS = KubeNames("train")
AT = "2026-01-01T00:00:00Z"
BEGAN = pod_reading.seconds(AT)


def pod(
    name: str = "p", phase: str = "Running", node: str = "n", **metadata: Any
) -> dict[str, Any]:
    labels = {GROUP: ITS.spot, "topology.kubernetes.io/zone": "z"}
    return {
        "metadata": {
            "name": name, "uid": f"u-{name}", "labels": labels, "creationTimestamp": AT, **metadata,
        },
        "spec": {"nodeName": node},
        "status": {"phase": phase, "podIP": "10.0.0.1", "conditions": []},
    }  # fmt: skip


def evicted(name: str = "p") -> dict[str, Any]:
    found = pod(name, deletionTimestamp="2026-01-01T00:01:00Z", deletionGracePeriodSeconds=60)
    found["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    return found


def test_a_pod_that_waits_for_a_machine_is_not_launched_yet() -> None:
    waits, runs = pod("w", "Pending", node=""), pod("r")
    group = pod_reading.worker_group(ITS.spot, 2, [waits, runs])
    assert [each.instance for each in group.members] == ["r"]
    assert (group.staying, group.asked) == (1, 1)


def test_members_drain_from_their_deletion_on_and_ended_ones_are_none() -> None:
    found = [pod("a"), evicted("b"), pod("c", "Failed"), pod("d", "Pending")]
    group = pod_reading.worker_group(ITS.spot, 4, found)
    states = {each.instance: each.state for each in group.members}
    assert states == {"a": IN_SERVICE, "b": DRAINING, "d": "Pending"}


def test_an_instance_has_its_zone_and_the_time_at_which_it_got_a_machine() -> None:
    found = pod()
    found["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:05:00Z"}
    ]
    its = pod_reading.instance(found, ITS.spot)
    assert (its.zone, its.spot, its.launched_at) == ("z", True, BEGAN + 300.0)


def test_a_launch_is_told_once_a_pod_has_a_machine() -> None:
    assert pod_reading.news([], [pod(node="")], BEGAN) == ()
    (launch,) = pod_reading.news([pod(node="")], [pod()], BEGAN)
    assert isinstance(launch, GroupActivity) and launch.succeeded
    assert (launch.name, launch.instance, launch.group) == ("launch", "p", ITS.spot)
    assert pod_reading.news(None, [pod()], BEGAN) == (), "before the first look it was told"
    assert pod_reading.news([pod()], [pod()], BEGAN) == ()


def test_an_eviction_and_an_end_are_told_once() -> None:
    (warning,) = pod_reading.news([pod()], [evicted()], BEGAN)
    assert isinstance(warning, SpotWarning) and warning.ahead == 60.0
    assert pod_reading.news([evicted()], [evicted()], BEGAN) == ()
    end, activity = pod_reading.news([evicted()], [], BEGAN)
    assert isinstance(end, StateChange) and (end.instance, end.state) == ("p", "terminated")
    assert isinstance(activity, GroupActivity) and activity.name == "terminate"
    assert pod_reading.news([pod("p", "Failed")], [], BEGAN) == (), "it was told before"
    assert pod_reading.news(None, [evicted()], BEGAN) != (), "also of one that is seen first then"


def test_why_a_pod_does_not_run_follows_what_it_has_written() -> None:
    found = pod("p", "Pending")
    waits = {"reason": "ImagePullBackOff", "message": "no such image"}
    found["status"]["containerStatuses"] = [{"name": "node", "state": {"waiting": waits}}]
    told = pod_reading.console(found, ["boot: line"])
    assert told == "boot: line\nnode: ImagePullBackOff: no such image"


def test_lines_of_workers_have_rank_and_time_and_those_of_the_agent_are_left_out() -> None:
    told = [
        "2026-01-01T00:00:01.123456789Z [3] loss 0.5",
        "2026-01-01T00:00:02Z boot: round 1",
        "2026-01-01T00:00:03+00:00 [0] [nested] text",
    ]
    found = list(lines("born", "pod-a", told))
    assert [(each.stream.rank, each.text) for each in found] == [
        (3, "loss 0.5"), (0, "[nested] text"),
    ]  # fmt: skip
    assert [each.at - int(BEGAN * 1000) for each in found] == [1123, 3000]


def test_a_line_is_known_again_wherever_the_log_is_read_from() -> None:
    told = [
        *("2026-01-01T00:00:01Z [0] a", "2026-01-01T00:00:02Z [0] b"),
        *("2026-01-01T00:00:02Z boot: round 1", "2026-01-01T00:00:02Z [0] b"),
    ]
    ids = [each.id for each in lines("born", "pod-a", told)]
    assert len(set(ids)) == 3
    assert [each.id for each in lines("born", "pod-a", told[1:])] == ids[1:]
