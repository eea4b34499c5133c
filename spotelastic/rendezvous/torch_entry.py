"""Entry point through which torchrun finds spotelastic as a rendezvous backend.

torch loads this module in every process that imports its launcher or its checkpoint package:
workers, and the process that forks them. So it imports the real handler only when torchrun calls
it: gRPC in a process that forks would be a hazard.
"""

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """What torch's registry asks for: a function from RendezvousParameters to a handler."""
    return _create


def _create(params: Any) -> Any:
    from spotelastic import systems

    systems.require_linux("--rdzv-backend=spotelastic")
    from spotelastic.rendezvous.torch_plugin import SpotelasticHandler

    return SpotelasticHandler(params)
