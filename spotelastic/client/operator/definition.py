"""Makes the CustomResourceDefinition of `ElasticJob` from the options of `up --kube` (pure).

The schema is structural: each value has one type, as Kubernetes demands. So what a flag takes in
several forms has one form here: a mapping for variables and labels, a list for everything else that
may be repeated.
"""

from collections.abc import Mapping
from typing import Any

from spotelastic.client.config.option import ConfigField, ValueKind
from spotelastic.client.operator.fields import FIXED, LEAST, QUANTITIES, described, fields
from spotelastic.kubernetes import elastic_job
from spotelastic.kubernetes.pods import Manifest

Schema = dict[str, Any]

INT_OR_STRING: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_TYPES: dict[ValueKind, Schema] = {
    ValueKind.SWITCH: {"type": "boolean"},
    ValueKind.WHOLE: {"type": "integer"},
    ValueKind.NUMBER: {"type": "number"},
    ValueKind.TEXT: {"type": "string"},
    ValueKind.PATH: {"type": "string"},
}
CODE_FROM: Schema = {
    "description": "Where code comes from that is not in the image: a ConfigMap, or an archive.",
    "type": "object",
    "properties": {
        "configMap": {
            "description": "ConfigMap of this namespace whose keys are the files of one folder. A "
            "changed ConfigMap is new code.",
            "type": "string",
        },
        "url": {
            "description": "URL of a .tar.gz archive, which pods read as they read the storage.",
            "type": "string",
        },
        "sha256": {
            "description": "SHA-256 of the archive at the URL, in hexadecimal digits; without a "
            "URL of the one that `up` has shipped in ConfigMaps.",
            "type": "string",
            "pattern": "^[0-9a-f]{64}$",
        },
    },
}
CODE_RULES = {
    "!has(self.configMap) || !has(self.url) && !has(self.sha256)": "configMap or url, not both",
    "!has(self.url) || has(self.sha256)": "url needs sha256: `sha256sum` prints it",
}
RULES = {
    "!has(self.min) || !has(self.max) || self.min <= self.max": "max is less than min",
    "has(self.storage) || has(self.bucket)": "no storage was given",
    **{
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == "
        f"oldSelf.{name})": f"{name} cannot be changed: delete the job, and apply it again"
        for name in sorted(FIXED)
    },
}
"""Rules in CEL about a specification, and what is said where one does not hold."""
COLUMNS = (
    ("State", "string", ".status.state", 0),
    ("Step", "integer", ".status.step", 0),
    ("Nodes", "integer", ".status.nodes", 0),
    ("Min", "integer", ".spec.min", 1),
    ("Max", "integer", ".spec.max", 1),
    ("Image", "string", ".spec.image", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Reason", "string", ".status.reason", 0),
    ("Message", "string", ".status.message", 1),
)
"""What `kubectl get` prints: name, type, path, and 1 for what only `-o wide` shows."""


def definition() -> Manifest:
    """Return the CustomResourceDefinition."""
    names = {
        "plural": elastic_job.PLURAL,
        "singular": elastic_job.SINGULAR,
        "kind": elastic_job.KIND,
        "listKind": elastic_job.LIST_KIND,
        "shortNames": [elastic_job.SHORT],
    }
    version = {
        "name": elastic_job.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema()},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, "priority": priority}
            for name, type_, path, priority in COLUMNS
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": elastic_job.NAME,
            "labels": {"app.kubernetes.io/managed-by": "spotelastic"},
        },
        "spec": {
            "group": elastic_job.GROUP,
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def schema() -> Schema:
    """Return the schema of the resource."""
    specified = {name: _property(field) for name, field in fields().items()}
    code = {**CODE_FROM, "x-kubernetes-validations": _rules(CODE_RULES)}
    return {
        "description": "A job that spotelastic trains elastically on pods that may be taken away.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "description": "The job. The fields are the flags of `spotelastic up --kube`.",
                "type": "object",
                "required": ["image"],
                "properties": {**specified, "codeFrom": code},
                "x-kubernetes-validations": _rules(RULES),
            },
            "status": _status(),
        },
    }


def _rules(rules: Mapping[str, str]) -> list[Schema]:
    return [{"rule": rule, "message": message} for rule, message in rules.items()]


def _property(field: ConfigField) -> Schema:
    found: Schema = {"description": described(field)}
    if field.name == "pod_template":
        return found | {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if field.takes_table:
        return found | {"type": "object", "additionalProperties": INT_OR_STRING}
    if field.kind is ValueKind.LIST:
        return found | {
            "type": "array",
            "items": INT_OR_STRING if field.argument else {"type": "string"},
        }
    takes_number = field.takes_number or field.name in QUANTITIES
    found |= INT_OR_STRING if takes_number else _TYPES[field.kind]
    if field.choices:
        found["enum"] = list(field.choices)
    if field.pattern:
        found["pattern"] = f"^({field.pattern})$"
    least = LEAST.get(field.name, field.least)
    return found if least is None else found | {"minimum": least}


def _status() -> Schema:
    """Return the schema of what the operator writes."""

    def text(description: str) -> Schema:
        return {"description": description, "type": "string"}

    def number(description: str) -> Schema:
        return {"description": description, "type": "integer", "format": "int64"}

    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {**text("What the condition is about."), "enum": [*elastic_job.CONDITIONS]},
            "status": {**text("Whether it holds."), "enum": ["True", "False", "Unknown"]},
            "reason": text("Why, as one word."),
            "message": text("Why, for people."),
            "lastTransitionTime": {**text("Since when."), "format": "date-time"},
            "observedGeneration": number("The generation of the resource that it is about."),
        },
    }
    return {
        "description": "How the job is doing. The operator writes it.",
        "type": "object",
        "properties": {
            "state": text("pending, running, succeeded, failed, stopped or timed out."),
            "reason": text("Why it is in this state, as one word."),
            "message": text("Why it is in this state, for people."),
            "step": number("The newest training step."),
            "nodes": number("How many nodes train."),
            "events": number("How many events of the job have been told as Events."),
            "observedGeneration": number("The generation of the resource that was seen last."),
            "conditions": {
                "description": "What holds of the job.",
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }
