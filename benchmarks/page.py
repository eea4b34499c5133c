"""How long the page of a large cluster takes to make, and how large it is.

    python benchmarks/page.py

The cluster has 10,000 events, 1,000 interruptions, 200 nodes with GPUs and 20,000 steps, and logs
values: the one of tests/support/clusters/published_cluster.py. A dashboard makes the page anew when
something has changed. The time is that of the process, which the machine's load disturbs less.
"""

import sys
import time
from pathlib import Path

from common.measuring import conduct, where

from spotelastic.web.page.render import sections
from spotelastic.web.view.cluster_view import cluster_view

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.clusters.published_cluster import BEGAN, very_large

SECONDS, BYTES = 0.3, 300_000
TIMES = 10


def main() -> None:
    """Measure, and print."""
    large, spent, written = very_large(), [], 0
    for _ in range(TIMES):
        begun = time.process_time()
        made = sections(cluster_view(large, BEGAN + 1001))
        spent.append(time.process_time() - begun)
        written = sum(len(part.encode()) for part in made.values())
    missed = ["MISSED"] if min(spent) > SECONDS or written > BYTES else []
    told = f"{min(spent):.3f} s (bar: {SECONDS} s), {written:,} bytes (bar: {BYTES:,})"
    print("the page of 10,000 events:", told, *missed)
    print(where())


if __name__ == "__main__":
    conduct(main)
