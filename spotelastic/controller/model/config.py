"""The configuration that one controller is started with."""

from dataclasses import dataclass

from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.model.job import JobSpec
from spotelastic.store.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class LoopPace:
    """How often a leading controller looks at the cloud and decides, in seconds."""

    idle: float = 20.0
    """Time between two looks at the cloud while nothing changes."""
    busy: float = 1.0
    """Time between two looks at the cloud while instances come and go."""
    soon: float = 0.25
    """Time after an action until the cloud is asked for its result."""
    turn: float = 0.05
    """Least time between two decisions, so that a burst of changes is looked at once."""
    long_poll: int = 20
    """Time that one request waits for messages; the most that SQS allows."""
    retry: float = 1.0
    """Pause after a request for messages that failed; it doubles with each failure in a row."""
    snapshots: float = 600.0


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The part of a cluster that one control node has."""

    spec: JobSpec
    instance: str
    address: str
    tls: TlsFiles | None = None
    """Files with which the controller connects to the etcd members."""
    policy: ControllerPolicy = ControllerPolicy()
    pace: LoopPace = LoopPace()
