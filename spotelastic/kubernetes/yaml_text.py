"""Writes manifests as YAML for people: keys in the order given, a comment where one is needed.

Only what JSON has can be written, which is all that manifests consist of. A text stands without
quotes where no version of YAML could take it for something else.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NOTES = {
    "publishNotReadyAddresses": "Pods find each other by these names before they are ready.",
    "podSelector": "Only the job's own pods reach each other. Neither etcd nor torch's store has a "
    "password.",
    "minAvailable": "An eviction never takes the last etcd member. It takes the others, with their "
    "grace period: a budget that refused would leave a reclaimed spot machine's pod without a "
    "warning.",
    "successPolicy": "Every node sees how the job ends; pods that never found a machine are not "
    "waited for.",
    "backoffLimitPerIndex": "What is wrong with one pod or its machine.",
    "podFailurePolicy": "Disruptions do not count, nor does a node that was asked to leave (143). "
    "A job that has failed (1) is not repeated.",
    "terminationGracePeriodSeconds": "What `spotelastic run` has to save its last step; a spot "
    "machine leaves two minutes.",
    "topologySpreadConstraints": "The pods with an etcd member do not share a zone or a machine.",
    "SPOTELASTIC_ZONE": "Empty before Kubernetes 1.35.",
    "emptyDir": "Snapshots of the training state: three times a pod's part of it.",
}
"""Comments by the key, or the name, of what they stand above when it comes up first."""
WIDTH = 96

_PLAIN = re.compile(r"(?:--)?[A-Za-z/][A-Za-z0-9_./=,@+$()-]*(?::[A-Za-z0-9_./=,@+$()-]+)*")
_WORDS = re.compile(r"y|n|yes|no|on|off|true|false|null|nan|inf", re.IGNORECASE)
"""Texts that some version of YAML reads as something else."""


def yaml_text(
    manifests: Sequence[Mapping[str, Any]],
    heading: Sequence[str] = (),
    notes: Mapping[str, str] = NOTES,
) -> str:
    """Return the manifests as one file of several documents, below comments."""
    left = dict(notes)
    documents = ["\n".join(_block(manifest, 0, left)) for manifest in manifests]
    above = "".join(f"# {line}".rstrip() + "\n" for line in heading)
    return above + "\n---\n".join(documents) + "\n"


def _block(value: Any, indent: int, left: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a mapping or a list; `left` has the comments that were not shown yet."""
    margin = " " * indent
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _noted(key, margin, left)
            yield from _entry(f"{margin}{_scalar(key)}:", each, indent + 2, left)
        return
    for each in value:
        if isinstance(each, Mapping | list) and each:
            if isinstance(each, Mapping):
                yield from _noted(str(each.get("name", "")), margin, left)
            first, *rest = _block(each, indent + 2, left)
            # A comment of the first key stands above the dash.
            while first.lstrip().startswith("#"):
                yield first[2:]
                first, *rest = rest
            yield f"{margin}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{margin}- {_scalar(each)}"


def _entry(head: str, value: Any, indent: int, left: dict[str, str]) -> Iterator[str]:
    if isinstance(value, Mapping | list) and value:
        yield head
        yield from _block(value, indent, left)
    else:
        yield f"{head} {_scalar(value)}"


def _noted(key: str, margin: str, left: dict[str, str]) -> Iterator[str]:
    """Yield the comment on a key, once, in lines that are not too long."""
    words = left.pop(key, "").split()
    while words:
        line = [words.pop(0)]
        while words and len(" ".join((*line, words[0]))) + len(margin) + 2 <= WIDTH:
            line.append(words.pop(0))
        yield f"{margin}# {' '.join(line)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value):
        return value
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    return json.dumps(value)


def _escaped(character: str) -> str:
    """Return a character as a text in quotes has it. YAML has no pairs of surrogates, as JSON."""
    code = ord(character)
    return f"\\U{code:08x}" if code > 0xFFFF else json.dumps(character)[1:-1]
