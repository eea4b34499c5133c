"""Values over a run's time, few enough for a page (pure).

They are what the script logs, and how busy GPUs are.
"""

from collections.abc import Collection

from spotelastic_checkpoints.types import TimedValue

from spotelastic.model.progress import GpuUse

Series = tuple[TimedValue, ...]
"""A value over time, the newest one last."""
GPU_USE, GPU_MEMORY = "GPU use", "GPU memory"
"""Of all nodes' GPUs, in percent. No name that a script logs has a space."""
MOST = 400
"""Values of a series. A long run's lie farther apart."""
MOST_NAMES = 50
"""Series of a run, whose script may come to log other names."""
GPUS_EVERY = 5.0
"""Least seconds between two values of the GPUs, of which each node tells by itself."""


def extended(series: Series, new: TimedValue) -> Series:
    """Return the series with a newer value; an older one changes nothing.

    The last one is always the newest: it takes the place of one that was too near to that before.
    """
    if series and new.at <= series[-1].at:
        return series
    apart = 2 * (new.at - series[0].at) / MOST if series else 0.0
    is_near = len(series) > 1 and series[-1].at - series[-2].at < apart
    longer = (*(series[:-1] if is_near else series), new)
    return longer if len(longer) <= MOST else (*longer[:-1:2], new)


def of_gpus(uses: Collection[GpuUse], at: float) -> dict[str, TimedValue]:
    """Return the mean over the nodes: of how busy GPUs are, and of their memory in use."""
    if not uses:
        return {}
    busy = sum(use.busy for use in uses) / len(uses)
    memory = sum(use.memory / max(1, use.memory_total) for use in uses) / len(uses)
    shares = {GPU_USE: busy, GPU_MEMORY: memory}
    return {name: TimedValue(at, round(100 * share, 1)) for name, share in shares.items()}
