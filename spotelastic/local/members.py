"""A member of an Auto Scaling group: moto's, with what life-cycle hooks and spot need."""

import uuid
from dataclasses import dataclass
from typing import Any

from moto.autoscaling import models

GLOBAL_TIMEOUT = 172800  # seconds that heartbeats can stretch a wait to
_MULTIPLES = 100  # of the heartbeat time-out, whichever is less


@dataclass(slots=True)
class Wait:
    """A life-cycle action that is waited for; times in seconds since the epoch."""

    hook: Any
    token: str
    deadline: float
    limit: float


class Member(models.InstanceState):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.zone = str(self.instance.placement.zone)
        self.spot = self.instance.lifecycle == "spot"
        self.waits: dict[str, Wait] = {}
        """By name of the hook."""
        self.abandoned = False
        self.activity: Any = None
        """The scaling activity that is under way for it."""

    def wait(self, hook: Any, now: float) -> Wait:
        timeout = hook.heartbeat_timeout
        limit = now + min(GLOBAL_TIMEOUT, timeout * _MULTIPLES)
        wait = Wait(hook, str(uuid.uuid4()), now + timeout, limit)
        self.waits[hook.name] = wait
        return wait
