"""Defines `spotelastic kube crd`, which prints the definition of the custom resource."""

from typing import Annotated

import typer

CRD_EXAMPLES = """[bold]Examples[/]

spotelastic kube crd | kubectl apply -f -

kubectl explain elasticjob.spec

kubectl get ej
"""


def crd(
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of YAML.")] = False,
) -> None:
    """Print the CustomResourceDefinition of ElasticJob, for `kubectl apply`.

    An administrator applies it once. `spotelastic kube operator` carries the
    resources out.
    """
    from spotelastic.cli.render import tables
    from spotelastic.client.operator.definition import definition
    from spotelastic.kubernetes.yaml_text import yaml_text

    made = definition()
    print(tables.to_json(made) if json else yaml_text([made]), end="\n" if json else "")
