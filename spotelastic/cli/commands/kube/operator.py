"""Defines `spotelastic kube operator`, which carries out the ElasticJobs of a namespace."""

import os
import re
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

OPERATOR_EXAMPLES = """[bold]Examples[/]

spotelastic kube operator --render --image REGISTRY/tools:1 --namespace ml | kubectl apply -f -

spotelastic kube operator --namespace ml --image REGISTRY/spotelastic:1
"""
POD, ALIVE = "SPOTELASTIC_POD", "SPOTELASTIC_ALIVE"
_IMAGE = re.compile(r"[\w.:/@-]+")


def operator(
    context: Annotated[
        str | None,
        typer.Option(help="Context of the kubeconfig.", show_default="the current one"),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            envvar="SPOTELASTIC_NAMESPACE",
            help="Namespace of the ElasticJobs.",
            show_default="that of the context, or of this pod",
        ),
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Print the manifests that run it in the cluster.")
    ] = False,
    image: Annotated[
        str | None,
        typer.Option(
            envvar="SPOTELASTIC_OPERATOR_IMAGE",
            help="Image of spotelastic with its extra kubernetes: of control pods, and with "
            "--render of the operator.",
        ),
    ] = None,
    node_notices: Annotated[
        bool,
        typer.Option(
            "--node-notices",
            envvar="SPOTELASTIC_NODE_NOTICES",
            help="Take taints of nodes that are about to go for notices: it needs the right to "
            "list nodes.",
        ),
    ] = False,
) -> None:
    """Carry out the ElasticJobs of a namespace, until Ctrl-C.

    With --render nothing is asked of a cluster: it prints the manifests of a
    Deployment that does so, with the definition of ElasticJob and the rights
    that it needs in that namespace. It needs none in the cluster.
    """
    from spotelastic.client.operator.definition import definition, operator_manifests
    from spotelastic.errors import UsageError
    from spotelastic.kubernetes.job_as_pods import checked_name

    if not image or not _IMAGE.fullmatch(image):
        raise UsageError("name the image of spotelastic: --image REGISTRY/spotelastic:1")
    if not render:
        raise typer.Exit(_run(context, namespace, image, node_notices=node_notices))
    if namespace:
        checked_name("--namespace", namespace)
    print(f"{definition()}---\n{operator_manifests(image, namespace or '')}", end="")


def _run(context: str | None, namespace: str | None, image: str, *, node_notices: bool) -> int:
    from spotelastic.client.operator.operator import serve
    from spotelastic.kubernetes.provider import api_client as kube_api
    from spotelastic.signals import Signals

    api, over = kube_api.connect(context, namespace), threading.Event()
    me = os.environ.get(POD) or f"{socket.gethostname()}-{os.getpid()}"
    alive = Path(os.environ[ALIVE]) if os.environ.get(ALIVE) else None
    with Signals() as signals:
        say = partial(print, flush=True)
        try:
            serve(api, me, image, over, say, alive, node_notices=node_notices)
        except KeyboardInterrupt:
            return signals.exit_code
    return 0
