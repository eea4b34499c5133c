"""Finds the loader of a training loop, and what makes its data count steps by themselves.

A `DataLoader` that is made in the script gets an `ElasticSampler`. Any other loader stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.source import (
    AssignedValue,
    Source,
    argument,
    calls,
    found,
    last_name,
)
from spotelastic.client.adapt.state import passed

WRAPPERS = frozenset({"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"})
REPLACED = ("batch_size", "shuffle", "sampler", "drop_last")
"""Arguments of a DataLoader that an ElasticSampler takes over."""


@dataclass(frozen=True, slots=True)
class ElasticData:
    """A loader that gets an `ElasticSampler`."""

    loader: AssignedValue
    call: cst.Call
    sampler: str
    """The name of the sampler, which becomes part of the state."""
    made: str
    """The expression that makes it."""
    dataset: str
    """The name that the data set gets, if the loader makes it; "" if it has one."""
    former: AssignedValue | None
    """The DistributedSampler in whose place it is."""


def elastic_data(source: Source, loop: TrainingLoop, workers: int | None) -> ElasticData | None:
    """Return the loader that gets an `ElasticSampler`; None if there is none that can.

    `workers`: how many workers the script's batch size was meant for. Raises `NotUnderstood` if
    that has to be said.
    """
    over = loop.over
    if over.is_range or not isinstance(over.source, cst.Name):
        return None
    name = passed(source, loop).get(over.source.value, over.source.value)
    made = source.assigned(name, source.scope(loop.outermost))
    if len(made) != 1 or not isinstance(made[0].value, cst.Call):
        return None
    call = made[0].value
    dataset, size = argument(call, "dataset", 0), argument(call, "batch_size", 1)
    positional = [arg for arg in call.args if arg.keyword is None]
    if last_name(call.func) != "DataLoader" or dataset is None or len(positional) > 2:
        return None
    if any(arg.star for arg in call.args) or argument(call, "batch_sampler") is not None:
        return None
    former = _former(source, call)
    if former is not None and not isinstance(dataset.value, cst.Name | cst.Attribute):
        return None  # its sampler is made before it
    given = argument(call, "sampler")
    if former is None and given is not None and last_name(given.value) != "None":
        return None  # a sampler of the user's own
    if _is_iterable(source, dataset.value, source.scope(made[0].statement)):
        return None
    text = "1" if size is None else source.code(size.value)
    is_shared = former is not None or _is_distributed(source)
    if is_shared and workers is None:
        raise source.not_understood(
            call,
            f"each worker takes {text} samples for each step: say with --workers N for how many "
            "workers that was meant, so that a step has the same samples with any number of them",
        )
    batch = _times(text, workers if is_shared and workers else 1)
    sampler = _name(source, former, given)
    options = _options(source, call, former)
    is_named = isinstance(dataset.value, cst.Name | cst.Attribute)
    its_name = "" if is_named else source.free("dataset", "train_data", "train_set")
    what = its_name or source.code(dataset.value)
    arguments = ", ".join([what, f"global_batch={batch}", *options])
    elastic = f"se.ElasticSampler({arguments})"
    return ElasticData(made[0], call, sampler, elastic, its_name, former)


def _former(source: Source, loader: cst.Call) -> AssignedValue | None:
    """Return the DistributedSampler that a loader is given, where it has a name."""
    given = argument(loader, "sampler")
    if given is None or not isinstance(given.value, cst.Name):
        return None
    made = source.assigned(given.value.value, source.scope(loader))
    if len(made) == 1 and calls(made[0].value, "DistributedSampler"):
        return made[0]
    return None


def _name(source: Source, former: AssignedValue | None, given: cst.Arg | None) -> str:
    if former is not None and given is not None:
        return last_name(given.value)
    return source.free("sampler", "train_sampler", "elastic_sampler")


def _options(source: Source, loader: cst.Call, former: AssignedValue | None) -> Sequence[str]:
    """Return what else the sampler is told: shuffling, the seed, and whether a rest is dropped."""
    options = []
    dealt = calls(former.value, "DistributedSampler")[0] if former is not None else None
    shuffle = argument(dealt if dealt is not None else loader, "shuffle")
    if dealt is None and shuffle is None:
        options.append("shuffle=False")
    elif shuffle is not None and source.code(shuffle.value) != "True":
        options.append(f"shuffle={source.code(shuffle.value)}")
    if dealt is not None and (seed := argument(dealt, "seed")) is not None:
        options.append(f"seed={source.code(seed.value)}")
    dropped = argument(loader, "drop_last")
    if dropped is not None and source.code(dropped.value) != "False":
        options.append(f"drop_last={source.code(dropped.value)}")
    return options


def _is_iterable(source: Source, dataset: cst.BaseExpression, scope: cst.CSTNode) -> bool:
    """Whether the data set is of a class of this script that has no length."""
    made = source.assigned(last_name(dataset), scope)
    kinds = {last_name(each.value.func) for each in made if isinstance(each.value, cst.Call)}
    if isinstance(dataset, cst.Call):
        kinds.add(last_name(dataset.func))
    for each in found(source.module, cst.ClassDef):
        bases = {last_name(base.value) for base in each.bases}
        if each.name.value in kinds and "IterableDataset" in bases:
            return True
    return False


def _is_distributed(source: Source) -> bool:
    """Whether several workers train one model."""
    return bool(calls(source.module, *WRAPPERS, "fully_shard"))


def _times(text: str, workers: int) -> str:
    """Return the samples of a step of all workers, as it is written."""
    if text.isdigit():
        return str(int(text) * workers)
    is_plain = text.replace("_", "").replace(".", "").isalnum()
    return text if workers == 1 else f"{text if is_plain else f'({text})'} * {workers}"
