"""Reads what has to be in a cluster for ElasticJobs, as YAML: it is in the Helm chart."""

from spotelastic.aws.base.infra_files import infra

IMAGE, PLACE = "{{ .Values.image }}", "{{ .Release.Namespace }}"
"""What Helm fills in."""


def definition() -> str:
    """Return the CustomResourceDefinition."""
    return infra("helm/crds/elasticjobs.yaml").read_text()


def operator_manifests(image: str, namespace: str = "") -> str:
    """Return the objects that run the operator, in the order in which they are to be created.

    `namespace`: the one whose ElasticJobs are looked after; empty: where they are applied.
    """
    lines = infra("helm/templates/operator.yaml").read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if namespace or PLACE not in line)
    return kept.replace(IMAGE, image).replace(PLACE, namespace)
