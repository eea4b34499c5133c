"""Defines `spotelastic kube render`, which prints the manifests of a job."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from spotelastic import validation
from spotelastic.cli.options import script_args
from spotelastic.cli.options import up as options
from spotelastic.client.config.job_config import SCRIPT
from spotelastic.client.config.option import config_fields
from spotelastic.client.kubernetes.pod_config import PRINTED, RENDERED, PodConfig
from spotelastic.errors import UsageError
from spotelastic.kubernetes.job_as_pods import PodJob

EXAMPLES = """[bold]Examples[/]

spotelastic kube render --image REGISTRY/train:1 --storage s3://bucket/run --max 8 --gpus 8 train.py

spotelastic kube render --min 2 --max 8 --namespace ml > train.yaml

spotelastic kube render --as job --min 2 --max 8 | kubectl apply -f -

spotelastic kube render --secret WANDB_API_KEY --node-selector karpenter.sh/capacity-type=spot
"""


class JobForm(StrEnum):
    """What a job is rendered as."""

    ELASTIC_JOB = "elastic-job"
    JOB = "job"


def render(form: JobForm, json: bool, **given: Any) -> None:
    """Print the manifests of a job, for `kubectl apply`: nothing is asked of a cluster.

    By default it is the ElasticJob that `up --kube` applies, but for the code,
    which is in the image. With `--as job` they need no operator.

    The image has the script, its packages and spotelastic. Flags that are not
    given are read from spotelastic.toml in this folder, those about pods from its
    table kubernetes. Everything after the script is passed to the script.

    A secret is named, and never printed: its value is in a Secret of the cluster.
    """
    from spotelastic.cli.render import tables
    from spotelastic.client.config.job_code import PlacedCode
    from spotelastic.client.kubernetes.kube_job import kube_job
    from spotelastic.client.operator import apply
    from spotelastic.kubernetes.manifests import manifests
    from spotelastic.kubernetes.yaml_text import yaml_text

    config = PodConfig(**given | {"args": script_args.without_guard(given["args"] or ())})
    name = config.name or validation.default_name(Path(config.script or SCRIPT))
    asked = replace(config, kube=True, secrets_from=config.secrets_from or name)
    job = kube_job(asked, PlacedCode())
    if form is JobForm.JOB:
        _check_for_job(config)
        made = manifests(job.pods)
    else:
        made = [apply.manifest(job, {})]
    if json:
        print(tables.to_json({"apiVersion": "v1", "kind": "List", "items": made}))
    else:
        print(yaml_text(made, _heading(job.pods)), end="")


def _check_for_job(config: PodConfig) -> None:
    """Raise `UsageError` for what pods without a control pod do not do."""
    for field in config_fields(PodConfig):
        if field.name not in RENDERED and getattr(config, field.name) != field.default:
            raise UsageError(f"--as job: {field.flag} is for an ElasticJob: leave it out")


def _heading(job: PodJob) -> Sequence[str]:
    """Return what has to be there before the manifests are applied."""
    made = [
        f"The job {job.name}, made by `spotelastic kube render`: apply it with `kubectl apply -f`."
    ]
    keys = [f'--from-literal={name}="${name}"' for name in sorted(job.secrets)]
    names = {each.secret for each in job.secrets.values()}
    made += [
        f"It reads a Secret: kubectl create secret generic {name} {' '.join(keys)}"
        for name in names
    ]
    return made


def _signature() -> Any:
    """Return the signature: those options of `up` that manifests depend on, and those of pods."""
    as_ = Annotated[
        JobForm,
        typer.Option(
            "--as", metavar="elastic-job|job", help="For an operator, or for Kubernetes alone."
        ),
    ]
    as_json = Annotated[bool, typer.Option("--json", help="Print JSON in place of YAML.")]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    own = [
        Parameter("form", kind, default=JobForm.ELASTIC_JOB, annotation=as_),
        Parameter("json", kind, default=False, annotation=as_json),
    ]
    return Signature([*options.parameters(PodConfig, PRINTED), *own])


render.__signature__ = _signature()  # type: ignore[attr-defined]
