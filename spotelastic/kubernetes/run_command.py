"""Makes the command that each pod of a job runs: `spotelastic run` with its flags (pure)."""

from collections.abc import Sequence

from spotelastic.kubernetes.job_as_pods import PORT, PodJob
from spotelastic.model.job import Settings

COMMAND = ("spotelastic", "run")


def arguments(job: PodJob, hosts: Sequence[str]) -> list[str]:
    """Return the arguments of the container. `hosts` are the names of the pods that run etcd."""
    low, high = job.settings.min_nodes, job.settings.max_nodes
    flags = {
        "nnodes": str(low) if low == high else f"{low}:{high}",
        "nproc-per-node": job.workers or ("gpu" if job.resources.gpus else ""),
        "rdzv-backend": "c10d",
        "rdzv-endpoint": ",".join(f"{host}:{PORT}" for host in hosts),
        # A pod's name has an address only while the pod is there.
        "rdzv-conf": "await_names=true",
        "rdzv-id": job.name,
        "grace-period": str(job.grace),
        "storage": literal(job.storage),
        # Prometheus comes from elsewhere in the cluster.
        "metrics-port": f"$(SPOTELASTIC_LOCAL_ADDR):{job.metrics_port}" if job.metrics_port else "",
    }
    given = [f"--{name}={value}" for name, value in flags.items() if value]
    ours = [literal(word) for word in (*_settings(job.settings), *job.flags)]
    script = [literal(word) for word in job.command]
    return [*given, *ours, *script]


def literal(text: str) -> str:
    """Return the text as a manifest holds it: Kubernetes replaces $(NAME) and makes $$ one $."""
    return text.replace("$", "$$")


def _settings(settings: Settings) -> list[str]:
    """Return flags for the settings that are not the default."""
    usual = Settings(settings.min_nodes, settings.max_nodes)
    named = {
        "max-restarts": (settings.max_restarts, usual.max_restarts),
        "snapshot-every": (settings.snapshot_every, usual.snapshot_every),
        "checkpoint-every": (settings.checkpoint_every, usual.checkpoint_every),
        "keep-last": (settings.keep_last, usual.keep_last),
        "keep-every": (settings.keep_every, usual.keep_every),
        "stall-timeout": (settings.stall_timeout, usual.stall_timeout),
        "exit-barrier-timeout": (settings.exit_barrier, usual.exit_barrier),
        "rank-policy": (settings.rank_policy, usual.rank_policy),
        "rehearse": (settings.rehearse, usual.rehearse),
    }
    flags = [
        f"--{name}={_text(value)}" for name, (value, default) in named.items() if value != default
    ]
    flags += [f"--output={output.replace(',', ',,')}" for output in settings.outputs]
    # In memory there are no replicas unless asked for; `spotelastic run` has them by default.
    flags += [f"--replicate={settings.replicate}"]
    flags += ["--guard"] * settings.guard + ["--exact"] * settings.exact
    flags += [f"--audit=1/{settings.audit}"] if settings.audit else []
    return flags + ["--gang"] * settings.gang


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
