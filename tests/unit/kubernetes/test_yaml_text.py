"""Manifests as text: any YAML reader gets back what was written, and people get comments."""

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from support.draws import drawn
from support.kubernetes.pod_jobs import pod_job

from spotelastic.kubernetes.manifests import manifests
from spotelastic.kubernetes.yaml_text import NOTES, yaml_text

texts = st.one_of(
    st.sampled_from(["yes", "No", "null", "~", "1e3", "0x1f", "1:30", "2026-11-27", "a: b", "#x"]),
    st.sampled_from(
        [
            "- a",
            "",
            " ",
            "a:",
            "$(A)",
            "*a",
            "&a",
            "!t",
            "x #y",
            "é",
            "12_3",
            ".5",
            "--",
            "--a",
            "---",
            "--a: b",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Co", "Cn"])),
)
keys = texts.filter(lambda text: len(text.encode("unicode_escape")) <= 317)
"""Kubernetes has no longer ones: a label's prefix, a slash and its name. YAML takes 1,024
characters as they are written, and many are written by their numbers.
"""
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), texts)
objects = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12
)


@settings(max_examples=drawn(100))
@given(st.lists(st.dictionaries(keys, objects, min_size=1), min_size=1, max_size=3))
def test_a_reader_gets_back_what_was_written(documents: list[dict[str, Any]]) -> None:
    text = yaml_text(documents, ["a heading", ""])
    assert list(yaml.safe_load_all(text)) == documents
    assert list(YAML(typ="safe", pure=True).load_all(text)) == documents


def test_a_comment_stands_above_what_it_is_about_once() -> None:
    job = pod_job(metrics_port=9464)
    text = yaml_text(manifests(job))
    assert list(yaml.safe_load_all(text)) == manifests(job)
    for key, note in NOTES.items():
        shown = text.count(f"# {note[:30]}")
        assert shown == 1, key
    lines = text.splitlines()
    (below,) = (at for at, line in enumerate(lines) if line.lstrip().startswith("podFailurePolicy"))
    assert lines[below - 1].lstrip().startswith("#")
    assert all(len(line) <= 100 for line in lines if line.lstrip().startswith("#"))


def test_the_same_job_is_always_the_same_text() -> None:
    assert yaml_text(manifests(pod_job())) == yaml_text(manifests(pod_job()))
