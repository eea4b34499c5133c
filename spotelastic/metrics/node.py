"""Turns what an agent knows of its own node into samples (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spotelastic.metrics.catalogue import Metric, Sample
from spotelastic.model.notice import Notice
from spotelastic.model.progress import Progress


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What one agent knows."""

    node: str
    zone: str = ""
    type: str = ""
    registered: bool = False
    workers: int = 0
    """Workers that are alive."""
    daemon: bool = False
    """Whether the checkpoint daemon runs."""
    notice: Notice | None = None
    sick: bool = False
    progress: Progress | None = None
    """What the node has published last."""


def _node(name: str, help: str, *labels: str, kind: Any = "gauge") -> Metric:
    return Metric(f"node_{name}", kind, help, "node", labels)


INFO = _node("info", "1, with what the node is.", "node", "zone", "type")
REGISTERED = _node("registered", "Whether the node has joined the run.")
WORKERS = _node("workers", "Workers of the node that are alive.")
DAEMON = _node("daemon_up", "Whether the checkpoint daemon runs.")
SICK = _node("sick", "Whether a GPU of the node is known to be sick.")
NOTICE = _node("notice", "1 while the node knows that it will go, by kind.", "kind")
NOTICE_DEADLINE = _node("notice_deadline_timestamp_seconds", "When the node will be gone.")
AT_RISK = _node("at_risk", "Whether the cloud says that the node may go.")
PROGRESS_AT = _node("progress_timestamp_seconds", "When the node last published its progress.")
ROUND = _node("round_number", "The number of the round that its workers are in.")
STEP = _node("step", "The step that its workers are at.")
STEP_SECONDS = _node("step_seconds", "Seconds per step.")
OWN_SECONDS = _node("step_own_seconds", "Seconds of a step in which the slowest worker works.")
WAITING_SECONDS = _node("step_waiting_seconds", "Seconds of a step in which it waits for others.")
STALL_SECONDS = _node("save_stall_seconds", "Seconds for which a snapshot keeps training waiting.")
COMMITTED = _node("committed_step", "The newest commit that the node knows of.")
COMMIT_SECONDS = _node("commit_seconds", "Seconds that the newest checkpoint took to upload.")
UPLOAD_DONE = _node("upload_done_bytes", "Bytes of this node's part of a checkpoint that are sent.")
UPLOAD_TOTAL = _node("upload_size_bytes", "Bytes of this node's part of the checkpoint.")
UPLOAD_RATE = _node("upload_rate_bytes_per_second", "Speed of this node's upload.")

GPU_BUSY = _node("gpu_busy_ratio", "Share of the time in which the node's GPUs compute.")
GPU_USED = _node("gpu_memory_used_bytes", "Memory of the node's GPUs that is in use.")
GPU_SIZE = _node("gpu_memory_size_bytes", "Memory that the node's GPUs have.")


def samples(facts: NodeFacts) -> Iterator[Sample]:
    """Yield what is known of the node. What was not measured yet has no samples."""
    yield INFO.sample(1, facts.node, facts.zone, facts.type)
    yield REGISTERED.sample(facts.registered)
    yield WORKERS.sample(facts.workers)
    yield DAEMON.sample(facts.daemon)
    yield SICK.sample(facts.sick)
    if facts.notice is not None:
        yield NOTICE.sample(1, str(facts.notice.kind.value))
        if facts.notice.deadline is not None:
            yield NOTICE_DEADLINE.sample(facts.notice.deadline)
    if facts.progress is not None:
        yield from _of_progress(facts.progress)


def _of_progress(progress: Progress) -> Iterator[Sample]:
    yield PROGRESS_AT.sample(progress.at)
    yield ROUND.sample(progress.round)
    yield STEP.sample(progress.step)
    yield AT_RISK.sample(progress.at_risk)
    yield COMMITTED.sample(progress.committed)
    for metric, measured in (
        (STEP_SECONDS, progress.step_time),
        (STALL_SECONDS, progress.stall),
        (COMMIT_SECONDS, progress.commit_time),
    ):
        if measured:
            yield metric.sample(measured)
    if progress.measured:
        yield OWN_SECONDS.sample(progress.own_time)
        yield WAITING_SECONDS.sample(progress.waiting_time)
    if progress.gpu is not None:
        yield GPU_BUSY.sample(progress.gpu.busy)
        yield GPU_USED.sample(progress.gpu.memory)
        yield GPU_SIZE.sample(progress.gpu.memory_total)
    upload = progress.upload
    yield UPLOAD_DONE.sample(upload.done if upload else 0)
    yield UPLOAD_TOTAL.sample(upload.total if upload else 0)
    yield UPLOAD_RATE.sample(upload.rate if upload else 0)
