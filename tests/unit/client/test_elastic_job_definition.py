"""The definition of the custom resource: it keeps Kubernetes' rules, and knows each option."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.emulated_kubernetes.api import custom, patches
from support.emulated_kubernetes.api.http import addressed, watch_line
from support.emulated_kubernetes.api.kinds import DEFINITIONS, ObjectKind
from support.emulated_kubernetes.api.objects import ObjectStore
from support.emulated_kubernetes.api.refusals import ApiError
from support.emulated_kubernetes.api.tables import table
from support.emulated_kubernetes.api.validate import completed
from support.emulated_kubernetes.control.control_plane import ControlPlane
from support.kubernetes.operator_parts import definition, schema
from support.kubernetes.pod_jobs import check_schema

from spotelastic.client.config.option import ConfigField, ValueKind, config_fields
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator.fields import FIXED, LEFT_OUT, fields, in_resource_terms

PLACE = "default"
SPEC: dict[str, Any] = {
    "image": "r/train:1",
    "storage": "s3://b/run",
    "args": ["--steps", 300],
    "min": 2,
    "memory": "64Gi",
    "cpu": 8,
    "snapshotEvery": 20,
    "env": {"EPOCHS": "3"},
    "resource": {"vpc.amazonaws.com/efa": 4},
    "codeFrom": {"configMap": "code"},
}


@pytest.fixture
def store() -> ObjectStore:
    made = ObjectStore(lambda: 1000.0)
    made.create(DEFINITIONS, "", completed(DEFINITIONS, definition()))
    return made


@contextmanager
def refused(code: int, told: str) -> Iterator[None]:
    with pytest.raises(ApiError) as found:
        yield
    assert found.value.code == code and told in found.value.message, found.value.message


def kind_of(store: ObjectStore) -> ObjectKind:
    return next(kind for kind in store.kinds() if kind.custom)


def job(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "gpt"}, "spec": {**SPEC, **spec}}


def test_the_definition_keeps_the_schema_of_kubernetes_and_its_rules_for_names() -> None:
    made = definition()
    check_schema(made)
    custom.check_definition(made)
    assert made["metadata"]["name"] == "elasticjobs.spotelastic.internal"


def test_each_option_is_a_field_or_left_out_and_speaks_of_fields_alone() -> None:
    names = {field.name for field in config_fields(PodConfig)}
    assert names >= LEFT_OUT | FIXED, "a name that no option has"
    properties = schema()["properties"]["spec"]["properties"]
    assert {*fields(), "codeFrom"} == set(properties), (
        "infra/helm/crds has one field too many, or few"
    )
    told = {name: each["description"] for name, each in properties.items()}
    assert not {name for name, text in told.items() if "--" in text}
    assert "Cannot be changed" in told["storage"] and "Cannot be changed" not in told["max"]


TYPES = {
    ValueKind.SWITCH: "boolean",
    ValueKind.WHOLE: "integer",
    ValueKind.NUMBER: "number",
    ValueKind.TEXT: "string",
    ValueKind.PATH: "string",
    ValueKind.LIST: "array",
}
QUANTITIES = ("cpu", "memory", "shm_size")


def type_of(field: ConfigField) -> str | None:
    """The type of an option's values in a resource; None: a number or a text."""
    if field.takes_table or field.name == "pod_template":
        return "object"
    if field.takes_number or field.name in QUANTITIES:
        return None
    return TYPES[field.kind]


@pytest.mark.parametrize("name", fields())
def test_each_field_takes_what_its_option_takes(name: str) -> None:
    field, has = fields()[name], schema()["properties"]["spec"]["properties"][name]
    assert has.get("type") == type_of(field)
    assert has.get("x-kubernetes-int-or-string", False) == (type_of(field) is None)
    assert has.get("enum", []) == list(field.choices)
    assert has.get("pattern", "") == (f"^({field.pattern})$" if field.pattern else "")
    assert field.least is None or has["minimum"] == field.least
    assert name not in schema()["properties"]["spec"]["required"] or field.name == "image"


def test_messages_about_flags_become_messages_about_fields() -> None:
    told = in_resource_terms("--max-restarts -1, and --nothing: see --storage s3://b")
    assert told == "spec.maxRestarts -1, and --nothing: see spec.storage s3://b"


def test_the_api_server_keeps_what_it_knows_and_drops_the_rest(store: ObjectStore) -> None:
    made = store.create(kind_of(store), PLACE, job(unknown=1, maxRestarts=None))
    assert made["spec"] == SPEC
    assert made["metadata"]["generation"] == 1
    patch = {"status": {"state": "running", "unknown": 1}, "spec": {"max": 4}}
    after = store.patch(kind_of(store), PLACE, "gpt", patch, patches.MERGE, status=True)
    assert (after["status"], after["metadata"]["generation"]) == ({"state": "running"}, 1)
    after = store.patch(kind_of(store), PLACE, "gpt", patch, patches.MERGE)
    assert (after["spec"]["max"], after["metadata"]["generation"]) == (4, 2)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"image": None}, "spec.image: Required value"),
        ({"min": "2"}, "spec.min"),
        ({"min": True}, "spec.min"),
        ({"zones": "all"}, "spec.zones: Unsupported value"),
        ({"snapshotEvery": "often"}, "spec.snapshotEvery"),
        ({"gracePeriod": 0}, "spec.gracePeriod"),
        ({"env": ["A=1"]}, "spec.env"),
        ({"args": [0.1]}, "spec.args[0]"),
        ({"codeFrom": {"sha256": "abc"}}, "spec.codeFrom.sha256"),
    ],
)
def test_the_api_server_refuses_wrong_values(
    store: ObjectStore, spec: dict[str, Any], told: str
) -> None:
    with refused(422, told):
        store.create(kind_of(store), PLACE, job(**spec))


def test_a_deleted_definition_takes_its_objects_along(store: ObjectStore) -> None:
    plane, kind = ControlPlane(store), kind_of(store)
    plane.reconcile()
    (known,) = store.items(DEFINITIONS)
    assert {each["type"] for each in known["status"]["conditions"]} >= {"Established"}
    held = job()
    held["metadata"]["finalizers"] = ["a/b"]
    store.create(kind, PLACE, held)
    store.delete(DEFINITIONS, "", known["metadata"]["name"])
    plane.reconcile()
    assert store.items(DEFINITIONS), "it waits for the object"
    store.patch(kind, PLACE, "gpt", {"metadata": {"finalizers": None}}, patches.MERGE)
    plane.reconcile()
    assert not store.items(DEFINITIONS) and not [k for k in store.kinds() if k.custom]


def test_a_watch_of_a_custom_kind_is_told_of_each_change(store: ObjectStore) -> None:
    seen: list[str] = []
    at = addressed("/apis/spotelastic.internal/v1alpha1/elasticjobs", store.kinds())
    store.on_change.append(
        lambda each: seen.append(watch_line(each, at, lambda _: True, lambda it: it).decode())
    )
    store.create(kind_of(store), PLACE, job())
    store.delete(kind_of(store), PLACE, "gpt")
    assert ["ADDED" in seen[0], "DELETED" in seen[1]] == [True, True]


def test_kubectl_gets_the_columns_of_the_definition(store: ObjectStore) -> None:
    kind = kind_of(store)
    store.create(kind, PLACE, job())
    status = {"state": "running", "step": 12, "nodes": 2}
    store.patch(kind, PLACE, "gpt", {"status": status}, patches.MERGE, status=True)
    shown = table(kind, store.items(kind), "1", 1061.0, store.definition(kind))
    assert [each["name"] for each in shown["columnDefinitions"]] == [
        *("Name", "State", "Step", "Nodes", "Age", "Reason")
    ]
    assert shown["rows"][0]["cells"] == ["gpt", "running", "12", "2", "61s", ""]
