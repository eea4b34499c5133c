"""Examines a node's GPUs on helper threads, and tells its agent what it found, as events."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spotelastic_checkpoints import isolated

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.health import efa, gpu_check, nvidia_smi
from spotelastic.agent.health.kernel_log import KernelLog
from spotelastic.agent.health.xids import KernelReport
from spotelastic.agent.state import events
from spotelastic.model.gpu import GpuReading

logger = logging.getLogger(__name__)

MEASURE_EVERY = 15.0
"""Seconds between two questions how busy the GPUs are."""
THREAD = "gpu-health"
"""Beginning of the names of its threads."""


@dataclass(slots=True)
class _Known:
    """What the check before joining has found; written once, before the event that tells of it."""

    readings: tuple[GpuReading, ...] = ()
    addresses: frozenset[str] = frozenset()
    """PCI addresses of the GPUs that the workers use, as the kernel writes them; empty: unknown."""


class GpuExaminer:
    """The GPUs of one node. Its methods return at once."""

    def __init__(
        self,
        config: AgentConfig,
        post: Callable[[events.LocalEvent], None],
        marks: Mapping[str, str],
        measure_every: float = MEASURE_EVERY,
    ) -> None:
        """Make an examiner.

        `marks`: variables by which processes that are left behind are found and ended.
        """
        self._config = config
        self._post = post
        self._environ = {**isolated.environment(), **config.env, **marks}
        self._known = _Known()
        self._log: KernelLog | None = None
        self._closed = threading.Event()
        self._measure_every = measure_every

    def check(self) -> None:
        """Check the GPUs, then tell of it with `GpusChecked`.

        Follows the kernel's log from now on.
        """
        self._start(self._check)

    def examine(self) -> None:
        """Asks nvidia-smi, then tells of it with `GpusExamined`."""
        self._start(self._examine)

    def close(self) -> None:
        self._closed.set()
        if self._log is not None:
            self._log.close()

    def _start(self, what: Callable[[], None]) -> None:
        threading.Thread(target=what, name=THREAD, daemon=True).start()

    def _check(self) -> None:
        config, found = self._config, gpu_check.GpuCheck()
        devices = efa.devices() if config.health.network else 0
        plugin = bool(devices) and efa.has_plugin({**os.environ, **config.env})
        if config.health.gpus:
            # Before the check, which may take a while: what the driver says meanwhile counts.
            self._log = KernelLog(config.health.kernel_log, self._reported, logger.warning)
            environ, promised = self._environ.copy(), config.health.promised
            if promised:  # what is hidden from workers is there all the same
                environ.pop("CUDA_VISIBLE_DEVICES", None)
            found = gpu_check.check(config.python, environ, promised)
            answer = nvidia_smi.ask(self._environ)
            self._known = _Known(answer.readings, found.addresses)
            if answer.hung and found.fault is None:
                found = gpu_check.GpuCheck(found.gpus, nvidia_smi.judge((), answer))
        if found.note:
            logger.warning(found.note)
        gpus = found.gpus or len(self._known.readings)
        self._post(events.GpusChecked(gpus, found.fault, devices, plugin))
        if self._known.readings:
            self._measure()

    def _measure(self) -> None:
        """Tells how busy the GPUs are, with `GpusMeasured`, again and again.

        Must never happen: this finds a fault, or asks a driver that hangs once more. What is seen
        here alone keeps no node from training.
        """
        before = None
        while not self._closed.is_set():
            answer = nvidia_smi.ask(self._environ, asked=nvidia_smi.USE_FIELDS)
            use = nvidia_smi.use(answer, self._known.addresses)
            if use != before:
                self._post(events.GpusMeasured(use))
            before = use
            if answer.hung or self._closed.wait(self._measure_every):
                return

    def _examine(self) -> None:
        answer = nvidia_smi.ask(self._environ)
        self._post(events.GpusExamined(nvidia_smi.judge(self._known.readings, answer)))

    def _reported(self, report: KernelReport) -> None:
        """Tells of what the kernel says about a GPU of this node's workers, not of another one.

        The switches between GPUs serve all of them.
        """
        fault, ours = report.fault, self._known.addresses
        logger.warning(f"the kernel says: {fault.line}")
        if not ours or report.of_switch or any(fault.gpu.startswith(each) for each in ours):
            self._post(events.XidSeen(fault, report.verdict or ""))
