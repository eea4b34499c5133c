"""Reads what the workers of a cluster on Kubernetes have written, from the logs of its pods.

Kubernetes keeps them as long as a pod is there. Lines of workers begin with the rank; those of the
agent do not, and are left out.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spotelastic.aws.messaging.log_group import GroupLine, LogStream, born
from spotelastic.clock import wall
from spotelastic.kubernetes.provider import pod_reading
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Missing
from spotelastic.kubernetes.provider.kube_names import KubeNames

SKEW = 300
"""Seconds by which this machine's clock may be behind those of the cluster's machines."""
_LINE = re.compile(r"(?P<at>\S+) \[(?P<rank>\d+)\] (?P<text>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PodOutput:
    """The output of a cluster's workers."""

    api: KubeApi
    cluster: str
    born_at: float

    def streams(self) -> list[LogStream]:
        """Return the streams of all workers."""
        return sorted({line.stream for line in self.lines("", 0)})

    def lines(self, begin: str, since: int) -> Iterator[GroupLine]:
        """Yield lines by time, of streams that begin so, and since then (in milliseconds)."""
        found, within = [], _within(since)
        for pod in self.api.found("Pod", KubeNames(self.cluster).labels("worker")):
            name = pod["metadata"]["name"]
            try:
                told = self.api.log(name, timestamps=True, within=within)
            except Missing:
                continue
            found += list(lines(born(self.born_at), name, told))
        wanted = (each for each in found if each.at >= since and str(each.stream).startswith(begin))
        yield from sorted(wanted, key=lambda each: each.at)


def lines(born: str, pod: str, told: Sequence[str]) -> Iterator[GroupLine]:
    """Yield the lines of workers among those that a pod has written, with their times (pure).

    A line is known by its time, and its place among those of the same time: so it has the same id
    wherever `told` begins.
    """
    same = Counter[str]()
    for text in told:
        at = text.partition(" ")[0]
        same[at] += 1
        if found := _LINE.fullmatch(text):
            stream = LogStream(born, pod, int(found["rank"]))
            milliseconds = int(pod_reading.seconds(_in_microseconds(at)) * 1000)
            yield GroupLine(f"{pod}:{at}:{same[at]}", stream, milliseconds, found["text"])


def _within(since: int) -> int | None:
    """Return the seconds of output to ask for, that none since then is left out; None: all."""
    return math.ceil(max(0.0, wall() - since / 1000)) + SKEW if since else None


def _in_microseconds(text: str) -> str:
    """Return a time with as many digits as Python reads; Kubernetes writes nanoseconds."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text)
