"""Registers spotelastic as a rendezvous backend of torchrun (entry point `torchrun.handlers`).

torch loads this module in every process that imports torch.distributed's launcher or checkpoints,
workers and the zygote included. So it imports nothing itself: gRPC in a process that forks would be
a hazard.
"""

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """What torch's registry asks for: a function from RendezvousParameters to a handler."""
    return _create


def _create(params: Any) -> Any:
    from spotelastic.rendezvous.torch_plugin import SpotelasticHandler

    return SpotelasticHandler(params)
