"""Defines `spotelastic kube render`, which prints a job as an ElasticJob."""

from dataclasses import replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from spotelastic import validation
from spotelastic.cli.options import script_args
from spotelastic.cli.options import up as options
from spotelastic.client.config.job_config import SCRIPT
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator.fields import rendered
from spotelastic.kubernetes.job_as_pods import PodJob

EXAMPLES = """[bold]Examples[/]

spotelastic kube render --image REGISTRY/train:1 --storage s3://bucket/run --max 8 --gpus 8 train.py

spotelastic kube render --min 2 --max 8 --namespace ml > train.yaml

spotelastic kube render --min 2 --max 8 | kubectl apply -f -

spotelastic kube render --secret WANDB_API_KEY --node-selector karpenter.sh/capacity-type=spot
"""


def render(json: bool, **given: Any) -> None:
    """Print a job as an ElasticJob, for `kubectl apply`: nothing is asked of a cluster.

    It is the one that `up --kube` applies, but for the code, which is in the image.

    The image has the script, its packages and spotelastic. Flags that are not
    given are read from spotelastic.toml in this folder, those about pods from its
    table kubernetes. Everything after the script is passed to the script.

    A secret is named, and never printed: its value is in a Secret of the cluster.
    """
    from spotelastic.cli.render import tables
    from spotelastic.client.config.job_code import PlacedCode
    from spotelastic.client.kubernetes.kube_job import kube_job
    from spotelastic.client.operator import apply
    from spotelastic.kubernetes.yaml_text import yaml_text

    config = PodConfig(**given | {"args": script_args.without_guard(given["args"] or ())})
    name = config.name or validation.default_name(Path(config.script or SCRIPT))
    asked = replace(config, kube=True, secrets_from=config.secrets_from or name)
    job = kube_job(asked, PlacedCode())
    made = apply.manifest(job, {})
    print(tables.to_json(made) if json else yaml_text(made, _heading(job.pods)).rstrip())


def _heading(job: PodJob) -> list[str]:
    """Return what has to be there before it is applied."""
    made = [f"The job {job.name}: apply it with `kubectl apply -f`."]
    if job.secrets:
        (secret,) = {each.secret for each in job.secrets.values()}
        keys = " ".join(f'--from-literal={name}="${name}"' for name in sorted(job.secrets))
        made.append(f"It reads a Secret: kubectl create secret generic {secret} {keys}")
    return made


def _signature() -> Any:
    """Return the signature: those options of `up` that an ElasticJob depends on."""
    as_json = Annotated[bool, typer.Option("--json", help="Print JSON in place of YAML.")]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    own = Parameter("json", kind, default=False, annotation=as_json)
    return Signature([*options.parameters(PodConfig, rendered()), own])


render.__signature__ = _signature()  # type: ignore[attr-defined]
