"""Gives commands the options that say on which Kubernetes cluster they look."""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from spotelastic.errors import UsageError

Kube = Annotated[
    bool | None,
    typer.Option("--kube/--no-kube", help="Look on Kubernetes.", show_default=False),
]
Context = Annotated[
    str | None, typer.Option(help="With --kube: the context.", show_default="the current one")
]
Namespace = Annotated[
    str | None, typer.Option(help="With --kube: the namespace.", show_default="the context's")
]


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with --kube, --context and --namespace.

    They become its `where`. As in `up`, spotelastic.toml or variables may say the same.
    """

    @functools.wraps(command)
    def with_place(
        *, kube: bool | None, context: str | None, namespace: str | None, **given: Any
    ) -> None:
        where = _place(kube, context, namespace, given["where"], given["region"])
        command(**given | {"where": where})

    signature = inspect.signature(command)
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [
        inspect.Parameter("kube", kind, default=None, annotation=Kube),
        inspect.Parameter("context", kind, default=None, annotation=Context),
        inspect.Parameter("namespace", kind, default=None, annotation=Namespace),
    ]
    parameters = [each.replace(kind=kind) for each in signature.parameters.values()]
    with_place.__signature__ = signature.replace(parameters=[*parameters, *own])  # type: ignore[attr-defined]
    return with_place


def _place(
    kube: bool | None,
    context: str | None,
    namespace: str | None,
    where: bool | None,
    region: str | None,
) -> Any:
    """Return where a command looks. Raises `UsageError` for two places."""
    from spotelastic.client.config import config_file
    from spotelastic.client.kubernetes.pod_config import PodConfig
    from spotelastic.client.targets.kube_target import KubePlace

    typed = kube or context is not None or namespace is not None
    if kube is False or (not typed and (where is not None or region is not None)):
        return where
    if where is not None or region is not None:
        raise UsageError("--kube: names another place than --local, --aws or --region: give one")
    told = config_file.defaults(Path.cwd(), os.environ, PodConfig)
    if not typed and not told.get("kube"):
        return where
    return KubePlace(context or told.get("context"), namespace or told.get("namespace"))
