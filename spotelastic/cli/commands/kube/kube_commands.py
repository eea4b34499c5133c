"""Assembles `spotelastic kube`: jobs on a Kubernetes cluster."""

import typer

from spotelastic.cli.commands.kube.operator import OPERATOR_EXAMPLES, operator
from spotelastic.cli.commands.kube.render import EXAMPLES, render
from spotelastic.cli.options import up as options

CRD_EXAMPLES = """[bold]Examples[/]

spotelastic kube crd | kubectl apply -f -

kubectl explain elasticjob.spec

kubectl get ej
"""
app = typer.Typer(
    help="Run jobs as pods of a Kubernetes cluster.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.callback()
def _kube() -> None:
    """Run jobs as pods of a Kubernetes cluster."""


app.command(
    "render",
    epilog=EXAMPLES,
    context_settings={"allow_interspersed_args": False, **options.SINGULAR},
)(render)


@app.command("crd", epilog=CRD_EXAMPLES)
def crd() -> None:
    """Print the CustomResourceDefinition of ElasticJob, for `kubectl apply`.

    An administrator applies it once. `spotelastic kube operator` carries the
    resources out.
    """
    from spotelastic.client.operator.definition import definition

    print(definition(), end="")


app.command("operator", epilog=OPERATOR_EXAMPLES)(operator)
