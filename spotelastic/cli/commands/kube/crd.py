"""Defines `spotelastic kube crd`, which prints the definition of the custom resource."""

CRD_EXAMPLES = """[bold]Examples[/]

spotelastic kube crd | kubectl apply -f -

kubectl explain elasticjob.spec

kubectl get ej
"""


def crd() -> None:
    """Print the CustomResourceDefinition of ElasticJob, for `kubectl apply`.

    An administrator applies it once. `spotelastic kube operator` carries the
    resources out.
    """
    from spotelastic.client.operator.definition import definition

    print(definition(), end="")
