"""Chooses which of a booted node's devices are checked."""

import os
from collections.abc import Mapping
from pathlib import Path

from spotelastic.agent.config import HealthChecks
from spotelastic.agent.health import kernel_log
from spotelastic.aws.node.hardware import Hardware
from spotelastic.bootstrap.container import NVIDIA

OFF = "SPOTELASTIC_NO_GPU_CHECK"
"""Variable of the job: with 1 its nodes' GPUs are neither checked nor watched."""


def of_this_node(
    hardware: Hardware, gpus: int, env: Mapping[str, str], home: Path, *, efa: bool
) -> HealthChecks:
    """Returns the checks of this node, whose type has so many `gpus`. `env`: the job's variables.

    A node of the local cloud has none of its type's GPUs. A kernel log that is named, for
    tests, is followed all the same; a relative path is one below `home`.
    """
    given = env.get(kernel_log.VARIABLE) or os.environ.get(kernel_log.VARIABLE)
    log = home / (given or kernel_log.PATH)
    promised = gpus if hardware.has_devices else 0
    if env.get(OFF) == "1":
        return HealthChecks(network=efa)
    checked = bool(promised or given or (hardware.has_devices and NVIDIA.exists()))
    return HealthChecks(gpus=checked, promised=promised, network=efa, kernel_log=log)
