"""The objects of the emulated cluster: versions, conflicts, patches, selectors, deletion."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.emulated_kubernetes.api import patches
from support.emulated_kubernetes.api.http import addressed
from support.emulated_kubernetes.api.kinds import CONFIG_MAPS, DEPLOYMENTS, JOBS, NODES, PODS
from support.emulated_kubernetes.api.objects import KEPT_CHANGES, ObjectStore
from support.emulated_kubernetes.api.refusals import ApiError
from support.emulated_kubernetes.api.selectors import by_selector, selected
from support.emulated_kubernetes.api.validate import completed

PLACE = "default"


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore(lambda: 1000.0)


def config(name: str = "c", labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


@contextmanager
def refused(code: int) -> Iterator[None]:
    """The block is refused with that status."""
    with pytest.raises(ApiError) as found:
        yield
    assert found.value.code == code, found.value.message


def test_of_two_writers_who_read_the_same_version_one_is_refused(store: ObjectStore) -> None:
    made = store.create(CONFIG_MAPS, PLACE, config(a="1"))
    store.replace(CONFIG_MAPS, PLACE, "c", {**made, "data": {"a": "2"}})
    with refused(409):
        store.replace(CONFIG_MAPS, PLACE, "c", {**made, "data": {"a": "3"}})
    assert store.get(CONFIG_MAPS, PLACE, "c")["data"] == {"a": "2"}
    with refused(409):
        store.create(CONFIG_MAPS, PLACE, config())


def test_a_write_that_changes_nothing_makes_no_version(store: ObjectStore) -> None:
    made = store.create(CONFIG_MAPS, PLACE, config(a="1"))
    assert store.replace(CONFIG_MAPS, PLACE, "c", made) is made
    assert store.patch(CONFIG_MAPS, PLACE, "c", {"data": {"a": "1"}}, patches.MERGE) is made


def test_what_the_server_sets_stays_whatever_a_writer_says(store: ObjectStore) -> None:
    made = store.create(DEPLOYMENTS, PLACE, {"metadata": {"name": "d", "uid": "mine"}, "spec": {}})
    assert made["metadata"]["uid"] != "mine"
    patch = {"metadata": {"creationTimestamp": "no"}, "status": {"replicas": 9}, "spec": {"x": 1}}
    after = store.patch(DEPLOYMENTS, PLACE, "d", patch, patches.MERGE)
    assert after["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert (after["status"], after["metadata"]["generation"]) == ({}, 2)
    after = store.patch(DEPLOYMENTS, PLACE, "d", patch, patches.MERGE, status=True)
    assert (after["status"], after["metadata"]["generation"]) == ({"replicas": 9}, 2)


def test_a_watch_sees_what_a_selector_means_come_change_and_go(store: ObjectStore) -> None:
    matches, seen = selected("app=a", ""), list[tuple[str, str]]()
    store.on_change.append(lambda each: seen.append((each.seen_by(matches, PLACE), each.kind.name)))
    store.create(CONFIG_MAPS, PLACE, config(labels={"app": "a"}))
    store.create(CONFIG_MAPS, "elsewhere", config(labels={"app": "a"}))
    store.patch(CONFIG_MAPS, PLACE, "c", {"data": {"x": "y"}}, patches.MERGE)
    store.patch(CONFIG_MAPS, PLACE, "c", {"metadata": {"labels": {"app": "b"}}}, patches.MERGE)
    store.delete(CONFIG_MAPS, PLACE, "c")
    words = [word for word, _ in seen]
    assert words == ["ADDED", "", "MODIFIED", "DELETED", ""]


def test_changes_that_are_no_longer_kept_are_refused(store: ObjectStore) -> None:
    first = store.version
    store.create(CONFIG_MAPS, PLACE, config())
    assert [each.version for each in store.changes(first)] == [first + 1]
    for number in range(KEPT_CHANGES + 1):
        store.patch(CONFIG_MAPS, PLACE, "c", {"data": {"n": str(number)}}, patches.MERGE)
    with refused(410):
        store.changes(first)
    assert list(store.changes(store.version)) == []


def test_a_pod_on_a_node_stays_until_it_has_ended(store: ObjectStore) -> None:
    store.create(PODS, PLACE, {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}})
    gone = store.delete(PODS, PLACE, "p", grace=7)
    assert gone["metadata"]["deletionGracePeriodSeconds"] == 7
    again = store.delete(PODS, PLACE, "p", grace=20)
    assert again["metadata"]["deletionGracePeriodSeconds"] == 7, "it gets no more time"
    store.delete(PODS, PLACE, "p", grace=0)
    assert store.find(PODS, PLACE, "p") is None


def test_a_finalizer_holds_an_object_until_it_is_taken_away(store: ObjectStore) -> None:
    held = {"metadata": {"name": "c", "finalizers": ["x/y"]}, "data": {}}
    store.create(CONFIG_MAPS, PLACE, held)
    store.delete(CONFIG_MAPS, PLACE, "c")
    assert "deletionTimestamp" in store.get(CONFIG_MAPS, PLACE, "c")["metadata"]
    store.patch(CONFIG_MAPS, PLACE, "c", {"metadata": {"finalizers": None}}, patches.MERGE)
    assert store.find(CONFIG_MAPS, PLACE, "c") is None


def test_who_deletes_another_object_of_the_name_is_refused(store: ObjectStore) -> None:
    store.create(CONFIG_MAPS, PLACE, config())
    with refused(409):
        store.delete(CONFIG_MAPS, PLACE, "c", uid="of-an-earlier-one")
    with refused(404):
        store.delete(CONFIG_MAPS, PLACE, "none")


# -- patches --------------------------------------------------------------------------------------


def test_a_merge_patch_removes_by_null_and_replaces_lists() -> None:
    before = {"a": {"b": 1, "c": 2}, "l": [1, 2]}
    assert patches.merged(before, {"a": {"b": None}, "l": [3]}) == {"a": {"c": 2}, "l": [3]}


def test_a_strategic_patch_merges_lists_by_their_keys() -> None:
    before = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}
    patch = {"containers": [{"name": "a", "image": "2"}, {"name": "b", "$patch": "delete"}]}
    after = patches.strategically_merged(before, patch)
    assert after == {"containers": [{"name": "a", "image": "2"}]}


def test_who_applies_again_without_a_field_removes_it_unless_another_applies_it(
    store: ObjectStore,
) -> None:
    def apply(manager: str, force: bool = False, **data: str) -> dict[str, Any]:
        return store.apply(CONFIG_MAPS, PLACE, "c", config("c", None, **data), manager, force=force)

    apply("me", a="1", b="1")
    apply("you", b="1")
    assert apply("me", a="1")["data"] == {"a": "1", "b": "1"}
    assert apply("me", c="1")["data"] == {"b": "1", "c": "1"}
    with refused(409):
        apply("me", b="2")
    assert apply("me", force=True, b="2")["data"] == {"b": "2"}


# -- selectors and paths --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ("", "abc"),
        ("app=x", "ab"),
        ("app==x,zone=1", "a"),
        ("app!=x", "c"),
        ("zone", "ab"),
        ("!zone", "c"),
        ("zone in (1, 3)", "a"),
        ("zone notin (1),app=x", "b"),
    ],
)
def test_label_selectors(labels: str, found: str) -> None:
    objects = {
        "a": {"app": "x", "zone": "1"},
        "b": {"app": "x", "zone": "2"},
        "c": {"app": "y"},
    }
    matches = selected(labels, "")
    its = {name: {"metadata": {"labels": each}} for name, each in objects.items()}
    assert "".join(name for name, each in its.items() if matches(each)) == found


def test_what_cannot_be_selected_is_refused() -> None:
    for labels, fields in (("a b", ""), ("", "spec.nothing=1")):
        with refused(400):
            selected(labels, fields)


def test_expressions_of_a_selector() -> None:
    asked = [{"key": "index", "operator": "In", "values": ["0", "1"]}]
    matches = by_selector({"matchLabels": {"job": "j"}, "matchExpressions": asked})
    assert matches({"metadata": {"labels": {"job": "j", "index": "1"}}})
    assert not matches({"metadata": {"labels": {"job": "j", "index": "2"}}})


def test_paths_name_kinds_objects_and_parts() -> None:
    at = addressed("/apis/batch/v1/namespaces/x/jobs/j/status")
    assert (at.kind, at.namespace, at.name, at.part) == (JOBS, "x", "j", "status")
    assert (addressed("/api/v1/pods").kind, addressed("/api/v1/pods").namespace) == (PODS, None)
    assert (addressed("/api/v1/nodes/n").kind, addressed("/api/v1/nodes/n").name) == (NODES, "n")
    assert addressed("/api/v1/namespaces/x").name == "x"
    with refused(404):
        addressed("/api/v1/namespaces/x/bananas")


# -- validation -----------------------------------------------------------------------------------


def job(**spec: Any) -> dict[str, Any]:
    container = {"name": "n", "image": "i", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    base = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    return {"metadata": {"name": "j"}, "spec": {**base, **spec}}


def test_a_job_that_the_cluster_cannot_run_is_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"completionMode": "NonIndexed"},
        {"template": {"spec": {"containers": []}}},
    ]
    for spec in wrong:
        with refused(422):
            completed(JOBS, job(**spec))
    made = completed(JOBS, job())
    assert made["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"


def test_the_size_of_a_job_may_change_and_its_template_may_not(store: ObjectStore) -> None:
    store.create(JOBS, PLACE, completed(JOBS, job()))

    def change(**spec: Any) -> dict[str, Any]:
        return store.patch(JOBS, PLACE, "j", {"spec": spec}, patches.MERGE)

    change(parallelism=1)
    change(parallelism=4, completions=4)
    with refused(422):
        change(completions=3)
    with refused(422):
        change(template={"spec": {"hostNetwork": True}})


def test_a_config_map_is_no_larger_than_a_real_one_can_be() -> None:
    with refused(422):
        completed(CONFIG_MAPS, config(a="x" * 1_048_577))
