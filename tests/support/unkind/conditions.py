"""How unkind the local cloud is: AWS's delays, stale answers, refusals and unreliable events.

The product's local cloud answers and acts at once. Under conditions it does what AWS does on a bad
day. They come from `SPOTELASTIC_LOCAL_CONDITIONS` when the cloud starts (`program.py`), e.g.
`slow=0.02,stale=3,throttled=0.2,seed=7`, and from the fault client later.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from spotelastic.errors import UsageError

VARIABLE = "SPOTELASTIC_LOCAL_CONDITIONS"

_MANY_ACCELERATORS = re.compile(r"(p[3-6]\w*|trn\w*|dl\w*)\.\d*(metal|24xlarge|32xlarge|48xlarge)")
"""Types that AWS takes long to end: their GPUs are reset and their memory is scrubbed."""
PENDING = 15.0, 45.0
"""Seconds on AWS until a new instance runs."""
BOOT = 105.0, 255.0
"""Seconds on AWS that a running instance needs until it starts what it is for."""
END = 20.0, 60.0
"""Seconds on AWS that an instance shuts down."""
LONG_END = 300.0, 900.0
"""Seconds on AWS that an instance with many accelerators shuts down."""
DETACH = 5.0, 30.0
"""Seconds on AWS that a disk or a network interface takes to detach."""
HEALTH_CHECK = 0.0, 60.0
"""Seconds on AWS until a group finds out that EC2 has taken one of its instances."""
TOGETHER_WITHIN = 1.0
"""Seconds within which instances of one pool get their notices, where several do."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the local cloud does to those who use it. The default is nothing."""

    slow: float = 0.0
    """Share of AWS's own durations that boots, ends, detachments and health checks last."""
    stale: float = 0.0
    """Seconds by which an answer to Describe may be old, and an instance profile unknown."""
    throttled: float = 0.0
    """Share of the calls that are refused because there are too many."""
    late: float = 0.0
    """Seconds by which an event may be late."""
    duplicated: float = 0.0
    """Share of the events that are delivered twice."""
    lost: float = 0.0
    """Share of the events that are never delivered."""
    together: int = 0
    """How many more instances of its pool get a notice in the same second as one does."""
    seed: int = 0
    """Decides what is drawn."""

    def __str__(self) -> str:
        return ",".join(f"{name}={value:g}" for name, value in self.changed().items())

    def changed(self) -> dict[str, float]:
        """Return what differs from the default."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if getattr(self, each.name) != each.default
        }


KIND = Conditions()


def parse(text: str) -> Conditions:
    """Read conditions as they are written. Raises `UsageError`."""
    found = KIND
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        found = _with(found, name.strip(), value.strip())
    return found


def from_environment(environment: Mapping[str, str]) -> Conditions:
    """Return the conditions that the environment asks for. Raises `UsageError`."""
    try:
        return parse(environment.get(VARIABLE, ""))
    except UsageError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None


def _with(conditions: Conditions, name: str, text: str) -> Conditions:
    kinds = {each.name: type(getattr(KIND, each.name)) for each in fields(Conditions)}
    if name not in kinds:
        raise UsageError(f"there is no condition {name!r}; there are {', '.join(kinds)}")
    try:
        value = kinds[name](text)
    except ValueError:
        raise UsageError(f"{name}={text}: give a number") from None
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name}={text}: give a number from 0 on")
    if name in ("throttled", "duplicated", "lost") and value > 1:
        raise UsageError(f"{name}={text}: give a share from 0 to 1")
    return replace(conditions, **{name: value})


class ConditionsInForce:
    """The conditions that hold now, and what is drawn under them, the same way for each seed.

    Each kind of thing has draws of its own, so that one does not depend on how many others there
    are.
    """

    def __init__(self, conditions: Conditions = KIND) -> None:
        self.now = conditions
        self._random = dict[str, random.Random]()

    def set(self, conditions: Conditions) -> None:
        """Let other conditions hold from now on, and draw anew."""
        self.now = conditions
        self._random = {}

    def pending(self) -> float:
        """Return for how many seconds a new instance is pending."""
        return self._lasts("pending", PENDING)

    def boot(self) -> float:
        """Return how many seconds a running instance needs until its processes start."""
        return self._lasts("boot", BOOT)

    def end(self, type: str) -> float:
        """Return how many seconds an instance of that type shuts down."""
        return self._lasts("end", LONG_END if _MANY_ACCELERATORS.fullmatch(type) else END)

    def detach(self) -> float:
        """Return how many seconds a disk or an interface detaches."""
        return self._lasts("detach", DETACH)

    def health_check(self) -> float:
        """Return after how many seconds a group finds out that an instance is gone."""
        return self._lasts("health check", HEALTH_CHECK)

    def deliveries(self) -> tuple[float, ...]:
        """Return after how many seconds each copy of an event is delivered; nothing: it is lost."""
        draw, now = self._draws("events"), self.now
        lost, twice = draw.random() < now.lost, draw.random() < now.duplicated
        delays = draw.uniform(0.0, now.late), draw.uniform(0.0, now.late)
        return () if lost else delays if twice else delays[:1]

    def refuses(self) -> bool:
        """Whether the next call is refused because there are too many."""
        return self.now.throttled > 0 and self._draws("calls").random() < self.now.throttled

    def age(self) -> float:
        """Return how many seconds old the answer to the next question may be."""
        return self._draws("answers").uniform(0.0, self.now.stale)

    def apart(self) -> float:
        """Return how many seconds after another one an instance of the same pool has notice."""
        return self._draws("notices").uniform(0.0, TOGETHER_WITHIN)

    def _lasts(self, kind: str, seconds: tuple[float, float]) -> float:
        drawn = self._draws(kind).uniform(*seconds)
        return drawn * self.now.slow

    def _draws(self, kind: str) -> random.Random:
        return self._random.setdefault(kind, random.Random(f"{self.now.seed}-{kind}"))
