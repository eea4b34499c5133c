"""torch loads our entry point wherever it imports its launcher: it must bring nothing along."""

import subprocess
import sys

from support.patience import PATIENT


def test_torch_takes_neither_grpc_nor_a_thread_along() -> None:
    """The zygote preloads these, and is forked."""
    program = """
import sys, threading
import torch.distributed.checkpoint, torch.nn.parallel
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
assert "spotelastic" in registry._registry, "torchrun knows the back end"
heavy = [name for name in sys.modules if name.partition(".")[0] in ("grpc", "pyetcd", "boto3")]
assert not heavy, heavy
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENT)
