"""Carries out an `up --kube`.

It applies the job as an ElasticJob, and waits until the operator has made or changed its cluster.

What the user needs rights for is the resource, and ConfigMaps and a Secret beside it; the operator
makes the rest. An interrupted `up` can be repeated at any point.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from spotelastic.client import confirmation
from spotelastic.client.config.differences import differences
from spotelastic.client.config.option import ConfigField
from spotelastic.client.confirmation import Confirm
from spotelastic.client.kubernetes import code_shipping, take_down
from spotelastic.client.kubernetes.cluster_mark import ClusterMark
from spotelastic.client.kubernetes.kube_cluster import KubeCluster, put, ship
from spotelastic.client.kubernetes.kube_job import KubeJob
from spotelastic.client.kubernetes.pod_job import pod_template
from spotelastic.client.operator.fields import FIXED, fields
from spotelastic.client.operator.resource import CODE_FROM, JobResource
from spotelastic.client.operator.told import HINDERED
from spotelastic.client.progress import Say
from spotelastic.client.targets.kube_target import KubeTarget
from spotelastic.clock import steady
from spotelastic.cloud.bucket import STOPPING
from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable, UsageError
from spotelastic.kubernetes import cluster_manifests, elastic_job, pod_files
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting, Missing, NoNamespace, Undefined
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.model.job import ALLOW_UNCOMMITTED, ENDED, JobSpec

KIND = elastic_job.KIND
ANSWERS_WITHIN = 60.0
"""Seconds within which an operator looks at a new ElasticJob."""
MADE_WITHIN = 300.0
TRIES = 10
LOOK = 0.5


def manifest(job: KubeJob, code: Mapping[str, str]) -> Manifest:
    """Return the ElasticJob that asks for a job, whose code is where `code` says (codeFrom)."""
    given = {
        name: _value(field, value)
        for name, field in fields().items()
        if (value := getattr(job.config, field.name)) not in (field.default, None, ())
    }
    config, spec = job.config, job.spec
    env = {name: text for name, text in spec.env.items() if name != ALLOW_UNCOMMITTED}
    given |= {"script": spec.script, "args": list(spec.args), "env": env}
    given |= {"min": config.min, "max": config.most, "storage": spec.storage, "bucket": None}
    secret = config.secrets_from or KubeNames(job.name).secrets
    given["secretsFrom"] = secret if spec.secrets else None
    if spec.code:
        given |= {CODE_FROM: dict(code), "workdir": None}
    where = {"namespace": config.namespace} if config.namespace else {}
    noted: Manifest = {"annotations": {elastic_job.FOLDER: spec.folder}} if spec.folder else {}
    if config.queue:
        noted["labels"] = {elastic_job.QUEUE: config.queue}
    return {
        "apiVersion": elastic_job.API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name, **where, **noted},
        "spec": {name: value for name, value in given.items() if value not in (None, [], {})},
    }


def look(target: KubeTarget, job: KubeJob, confirm: Confirm) -> KubeCluster | None:
    """Return the cluster of the job's name, if it is up already.

    Raises `UsageError` if the job cannot be brought up beside it.
    """
    code_shipping.check(job.archive, job.spec.storage)
    known = target.known(job.name)
    if known is None:
        return None
    end = f"end the cluster with `spotelastic down {target.arguments_of(known.name)}`"
    status = known.objects.status()
    if status is not None and status.state in ENDED:
        raise UsageError(
            f"the job of {known.name} has {status.state}: continue it with `spotelastic restart "
            f"{target.arguments_of(known.name)}`, or {end} and run this again"
        )
    if known.objects.has(STOPPING):
        raise UsageError(f"the cluster {known.name} is being taken down")
    before = target.api.get(KIND, known.name)
    if before is None:
        raise UsageError(f"the cluster {known.name} belongs to no ElasticJob: {end} first")
    made = manifest(job, {})["spec"]
    for name in sorted(FIXED):
        if before["spec"].get(name) != made.get(name):
            has = before["spec"].get(name, "its default")
            raise UsageError(
                f"--{name}: {known.name} has {has}: {end} first, or give another --name"
            )
    other = confirmation.difference(known.spec, job.spec.script, job.spec.folder)
    if other is not None:
        confirmation.ensure_other(
            "other job",
            f"{known.name} is up already, and trains {other}",
            "Change its job to that?",
            "give this one another --name",
            confirm,
        )
    return known


def carry_out(target: KubeTarget, job: KubeJob, known: KubeCluster | None, say: Say) -> KubeCluster:
    """Apply the job, and return its cluster once the operator has made or changed it.

    If a new one fails, also by `KeyboardInterrupt`, what was created is deleted.
    """
    if known is not None:
        changes = "; ".join(differences(known.spec, _as_read(job)))
        say(f"{job.name} is up already; changes: {changes or 'none'}")
        return _applied(target.api, job, say)
    before = target.api.get(KIND, job.name)
    if before is not None and (before.get("status") or {}).get("state") in ENDED:
        say(f"removing what an earlier {job.name} has left")
        target.down(job.name, say)
        before = None
    try:
        return _applied(target.api, job, say)
    except (NoNamespace, Undefined):
        raise  # nothing can be there
    except BaseException:
        if before is None:  # else it was somebody's before
            _remove(target, job.name, say)
        raise


def _applied(api: KubeApi, job: KubeJob, say: Say) -> KubeCluster:
    its, given = KubeNames(job.name), code_shipping.ship(job.archive, job.spec.storage, say)
    url = pod_files.url_of(given) if given else ""
    made = manifest(job, {"sha256": job.spec.code, **({"url": url} if url else {})})
    owner = {**made, "metadata": _written(api, made, overwrite=False)["metadata"]}
    if given and not url:
        ship(api, its, given, owner)
    if job.secrets:
        put(api, cluster_manifests.secret(its, job.secrets, owner))
    found = _written(api, made)
    say(f"the ElasticJob {job.name} is applied; its operator makes the pods")
    return _awaited(api, job, int(found["metadata"].get("generation", 1)), say)


def _written(api: KubeApi, made: Manifest, *, overwrite: bool = True) -> Manifest:
    """Create the resource, or give the one that is there the same content.

    Its operator may write its status at the same time.
    """
    for _ in range(TRIES):
        try:
            found = api.ensure(made)
        except Missing as error:
            raise Undefined(KIND) from error
        its = found["metadata"]
        noted = {
            part: {**(its.get(part) or {}), **made["metadata"][part]}
            for part in ("annotations", "labels")
            if part in made["metadata"]
        }
        is_same = found.get("spec") == made["spec"] and {**its, **noted} == its
        if is_same or not overwrite:
            return found
        with suppress(Conflicting):
            return api.replace({**made, "metadata": {**its, **noted}})
    raise Unavailable(f"the ElasticJob {made['metadata']['name']} keeps changing: try again")


def _awaited(api: KubeApi, job: KubeJob, generation: int, say: Say) -> KubeCluster:
    """Return the cluster once it has what this generation of the resource asks for.

    Raises `UsageError` if the operator refuses it, and `Unavailable` if there is none.
    """
    begun, wanted, told = steady(), _as_read(job), set[str]()
    while True:
        found = api.get(KIND, job.name)
        if found is None:
            raise EnvironmentFailure(f"the ElasticJob {job.name} was deleted")
        its = JobResource.read(found)
        seen = its.condition("Accepted")
        is_seen = bool(seen) and int(seen.get("observedGeneration", 0)) >= generation
        if is_seen and seen["status"] != "True":
            raise UsageError(f"{job.name} is refused ({seen['reason']}): {seen['message']}")
        known = KubeCluster.of(api, job.name)
        waits = its.status.get("state") in (elastic_job.QUEUED, elastic_job.SUSPENDED)
        if is_seen and waits:
            begun, known = steady(), None
        if is_seen and (waits or its.status.get("reason") == HINDERED):
            message = f"{job.name} is {its.status['state']}: {its.status['message']}"
            if message not in told:
                say(message)
            told.add(message)
        mark = None if known is None else ClusterMark.of(known.objects)
        is_given = mark is not None and mark.uid == its.uid and mark.digest
        if is_seen and known and is_given:
            others = differences(known.spec, wanted)
            # A queue may have admitted fewer nodes.
            if not [each for each in others if not (its.queue and each.startswith("max "))]:
                return known
        if not is_seen and steady() > begun + ANSWERS_WITHIN:
            raise Unavailable(
                f"no operator looks after ElasticJobs in the namespace {api.namespace}: run one "
                "with `spotelastic kube operator --render --image IMAGE | kubectl apply -f -`"
            )
        if steady() > begun + MADE_WITHIN:
            raise Unavailable(
                f"the operator has not made {job.name} within {MADE_WITHIN:.0f} s: see `kubectl "
                f"--namespace {api.namespace} describe elasticjob {job.name}`"
            )
        threading.Event().wait(LOOK)


def _as_read(job: KubeJob) -> JobSpec:
    """Return the job as the operator reads it of the resource."""
    return replace(job.spec, linger=None)


def _value(field: ConfigField, value: Any) -> Any:
    """Return an option's value as JSON has it."""
    if field.name == "pod_template":
        return pod_template(value)
    if field.takes_table:
        return {name: text for name, _, text in (each.partition("=") for each in value)}
    if isinstance(value, bool | int | float):
        return value
    return list(value) if isinstance(value, tuple) else str(value)


def _remove(target: KubeTarget, name: str, say: Say) -> None:
    """Delete what was created of a cluster, if anything was."""
    try:
        if target.api.get(KIND, name) is None and not take_down.left(target.api, name):
            return
        say(f"creating {name} failed: deleting what was created")
        target.down(name, say)
    except SpotelasticError as error:
        say(
            f"not all of {name} could be deleted: {error}; run `spotelastic down "
            f"{target.arguments_of(name)}` again"
        )
