"""Jobs that are applied with kubectl, and the operator that carries them out."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kubernetes import emulated_kueue, operator_parts
from support.kubernetes.elastic_jobs import SCRIPT, Applied, conditions
from support.kubernetes.emulated_kueue import EmulatedKueue
from support.kubernetes.kube_client import PLACE, emulated
from support.kubernetes.operator_parts import KUEUE
from support.processes.patience import eventually

from spotelastic.errors import EnvironmentFailure
from spotelastic.kubernetes.cluster_manifests import control_rules
from spotelastic.kubernetes.elastic_job import KIND
from spotelastic.kubernetes.provider.kube_names import KubeNames

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(900)]

ENDLESS = 1_000_000
SELDOM = {
    ("get", "", "pods/log"),  # of a pod that does not begin
    ("patch", "batch", "jobs"),  # once a group has been there for a while
    ("delete", "", "pods"),
    ("delete", "", "configmaps"),
    ("update", "", "configmaps"),  # at a command such as `scale`
}
"""Rights of the control pod that a short life need not use."""
PATCHED = ("patch", "kueue.x-k8s.io", "workloads")
"""A right of the operator that it uses where a job that waits in a queue is changed."""


@pytest.fixture
def applied(tmp_path: Path) -> Iterator[Applied]:
    with emulated() as kube:
        yield Applied.on(kube, tmp_path)


def test_a_job_is_applied_scaled_by_editing_and_deleted_whoever_dies(applied: Applied) -> None:
    applied.apply("gpt", ENDLESS, min=2, max=2)
    before = applied.training("gpt", 2)
    assert conditions(before) == {"Accepted": "Valid", "Running": "Running"}
    applied.kill_operator()
    applied.edit("gpt", max=3)
    after = applied.training("gpt", 3, before["step"])
    with pytest.raises(EnvironmentFailure, match="storage cannot be changed"):
        applied.edit("gpt", storage=applied.storage + "-other", max=2)
    applied.edit("gpt", toleration=["a b"], max=2)
    refused = applied.until(
        "gpt", lambda it: "Accepted" not in conditions(it), "a refusal of a toleration"
    )
    (accepted,) = (each for each in refused["conditions"] if each["type"] == "Accepted")
    assert "spec.toleration" in accepted["message"], accepted
    assert conditions(refused) == {"Running": "Running"}
    applied.edit("gpt", toleration=["spot"])
    applied.training("gpt", 2, after["step"])
    told = applied.events("gpt")
    assert {"Accepted", "Running", "Refused", "Round"} <= set(told)
    assert told.count("Creating") == 1
    applied.delete("gpt")
    applied.until("gpt", lambda it: it["state"] == "ending", "the beginning of the end")
    applied.kill_operator()
    applied.gone("gpt")
    _check_rights(applied)


def test_a_storage_is_that_of_one_job_and_another_fails_before_it_trains(applied: Applied) -> None:
    """The first one goes on, whatever the other one does."""
    applied.apply("first", ENDLESS, max=1)
    applied.training("first", 1)
    applied.apply("other", ENDLESS, max=1)
    failed = applied.until("other", lambda it: it["state"] == "failed", "its refusal")
    assert failed["step"] == 0
    assert "another job uses it: first: " in str(failed)
    applied.training("first", 1, applied.status("first")["step"])
    for name in ("other", "first"):
        applied.delete(name)
        applied.gone(name)


def test_a_job_of_the_image_ends_and_is_not_begun_again_and_its_name_is_not_anothers(
    applied: Applied,
) -> None:
    applied.apply(
        "gpt", 300, codeFrom=None, workdir=str(SCRIPT.parent), script=SCRIPT.name, linger=0
    )
    ended = applied.until("gpt", lambda it: it["state"] == "succeeded", "its end")
    assert conditions(ended) == {"Accepted": "Valid", "Succeeded": "Succeeded"}
    assert ended["step"] == 300
    eventually(lambda: not applied.left("gpt", "Pod"), "the end of its pods")
    applied.kill_operator()
    applied.edit("gpt", args=[600])
    refused = applied.until("gpt", lambda it: "Accepted" not in conditions(it), "a refusal")
    assert refused["state"] == "succeeded" and not applied.left("gpt", "Pod")
    applied.delete("gpt")
    applied.gone("gpt")
    others = {"metadata": {"name": "other-cluster", "labels": {"spotelastic/cluster": "other"}}}
    applied.kube.create({"apiVersion": "v1", "kind": "ConfigMap", **others})
    applied.apply("other", 10)
    applied.until("other", lambda it: it["state"] == "refused", "a refusal of a name that is taken")
    applied.delete("other")
    eventually(lambda: applied.api.get(KIND, "other") is None, "the end of the resource")
    assert applied.left("other", "ConfigMap") == ["other-cluster"]


def test_a_queue_admits_a_job_whole_and_a_preempted_one_goes_on_from_its_last_step(
    applied: Applied,
) -> None:
    applied.kube.create(*emulated_kueue.definitions())
    kueue, script = EmulatedKueue(applied.api, 3), SCRIPT.read_text()
    told = script.replace(
        "    checkpoint.log(", '    print(f"made {step}")\n        checkpoint.log('
    )
    data = {"train.py": told}
    applied.kube.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "told"}, "data": data}
    )
    sizes: dict[str, Any] = {"min": 2, "max": 2, "linger": 0, "queue": "team"}
    sizes["codeFrom"] = {"configMap": "told"}
    with kueue.looking():
        applied.apply("low", ENDLESS, **sizes)
        applied.training("low", 2)
        applied.apply("high", 300, storage=applied.storage + "-high", **sizes)
        applied.until("high", lambda it: "more needed" in it["message"], "its place in the queue")
        applied.training("low", 2, applied.status("low")["step"] + 50)
        assert not applied.left("high", "Pod") and applied.status("high")["state"] == "queued"
        logs = applied.logs("low")
        kueue.prefer("high", 10)
        applied.until("low", lambda it: it["state"] == "suspended", "its suspension")
        applied.kill_operator()
        applied.training("high", 2)
        assert not applied.left("low", "Pod") and kueue.used() == 3
        made = {name: steps(log, "made") for name, log in logs.items()}
        (last,) = {each[-1] for each in made.values()}
        ended = applied.until("high", lambda it: it["state"] == "succeeded", "its end")
        assert ended["step"] == 300 and kueue.conditions("high")["Finished"] == (True, "Succeeded")
        applied.training("low", 2, last)
        begun = {steps(log, "begins at")[0] for log in applied.logs("low").values()}
        assert begun == {last}, "a step was lost"
        for name in ("low", "high"):
            applied.delete(name)
            applied.gone(name)
    granted = {(verb, group, what) for group, what, verbs in KUEUE for verb in verbs}
    used = applied.used(operator_parts.NAME)
    assert {each for each in granted - used if each[0] not in ("delete",)} <= {PATCHED}, used


def test_a_taint_of_a_node_is_a_notice_where_the_operator_may_list_nodes(tmp_path: Path) -> None:
    """Nobody drains the node, which goes with all that is on it."""
    with emulated() as kube:
        kube.create(*operator_parts.node_rights(PLACE))
        its = Applied.on(kube, tmp_path, SPOTELASTIC_NODE_NOTICES="1")
        its.apply("gpt", ENDLESS, min=1, max=2)
        before = its.training("gpt", 2)
        pod = its.api.found("Pod", KubeNames("gpt").labels("worker"))[0]
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        kube.cluster.cause("taint-node", node=node, seconds=600)
        eventually(lambda: its.api.get("Pod", name) is None, "the end of the pod that was warned")
        its.training("gpt", 2, before["step"])
        assert f"{name}: its node is about to go" in its.log()
        pods = its.api.found("Pod", KubeNames("gpt").labels("worker"))
        assert node not in {each["spec"]["nodeName"] for each in pods}
        rows = its.report("gpt")["interruptions"]
        (told,) = (row for row in rows if row["node"] == name)
        assert (told["kind"], told["steps_lost"], len(rows)) == ("leave", 0, 1), rows
        its.delete("gpt")
        its.gone("gpt")
        assert ("list", "", "nodes") in its.used(operator_parts.NAME)


def steps(log: Path, word: str) -> list[int]:
    """The numbers that a worker's log has after a word."""
    text = log.read_text(errors="replace")
    return [int(each) for each in re.findall(rf"{word} (\d+)", text)]


def _check_rights(applied: Applied) -> None:
    """No right is granted that is not used: what is used without one was refused before.

    What Kubernetes has collected by itself was not deleted, so that deletions may be missing.
    """
    own = {
        (verb, group, resource) for group, resource, verbs in operator_parts.OWN for verb in verbs
    }
    used = applied.used(operator_parts.NAME)
    assert used <= own, used - own
    assert {each for each in own - used if each[0] != "delete"} == set()
    granted = {
        (verb, rule["apiGroups"][0], rule["resources"][0])
        for rule in control_rules(KubeNames("gpt"))
        for verb in rule["verbs"]
    }
    assert applied.used("gpt-control") <= granted
    unused = granted - applied.used("gpt-control")
    assert unused <= SELDOM, unused
