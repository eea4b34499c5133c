"""Assembles `spotelastic kube`: jobs on a Kubernetes cluster."""

import typer

from spotelastic.cli.commands.kube.crd import CRD_EXAMPLES, crd
from spotelastic.cli.commands.kube.operator import OPERATOR_EXAMPLES, operator
from spotelastic.cli.commands.kube.render import EXAMPLES, render
from spotelastic.cli.options import up as options

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
app.command("crd", epilog=CRD_EXAMPLES)(crd)
app.command("operator", epilog=OPERATOR_EXAMPLES)(operator)
