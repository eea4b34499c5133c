"""Finds the loader of a training loop, and gives it an `ElasticSampler`.

A loader that deals out samples to fixed ranks, or whose order a new process would not know, is
refused.
"""

import ast
from dataclasses import dataclass

from spotelastic.client.adapt.loops import TrainingLoop, statement_of
from spotelastic.client.adapt.source import Function, Source, argument, calls, dotted, nodes
from spotelastic.client.adapt.state import is_shared

REPLACED = ("batch_size", "shuffle", "sampler", "drop_last")
"""Arguments of a DataLoader that an ElasticSampler takes over."""
UNKNOWN = ("batch_sampler", "generator", None)
FIXED = ("num_replicas", "num_shards", "process_index")
BY_HAND = (
    "sampler = se.ElasticSampler(dataset, global_batch=...), "
    "loader = DataLoader(dataset, batch_sampler=sampler), and the sampler in the state"
)


@dataclass(frozen=True, slots=True)
class ElasticData:
    """A loader that gets an `ElasticSampler`."""

    call: ast.Call
    made: str
    """The expression that makes the sampler."""
    named: str
    """The sampler, in the words of the function that has the loop."""
    former: ast.Call | None
    """The DistributedSampler in whose place it is."""
    dataset: ast.expr | None
    """The expression that makes the data set, where that has no name."""
    its_name: str
    """The name that it has, or gets."""


def elastic_data(source: Source, loop: TrainingLoop, workers: int | None) -> ElasticData | None:
    """Return the loader that gets an `ElasticSampler`; None if the loop goes over a range.

    `workers`: how many workers the script's batch size was meant for. Raises `NotUnderstood`.
    """
    if loop.target is None:
        _check_ranks(source, None)
        return None
    name = source.code(loop.over)
    _check_prepared(source, name)
    call = _made(source, loop, name)
    given = {each.arg for each in call.keywords}
    dataset, size = argument(call, "dataset", 0), argument(call, "batch_size", 1)
    if dotted(call.func).rpartition(".")[2] != "DataLoader" or dataset is None:
        raise source.not_understood(
            call, f"{name} is made by no DataLoader(dataset, ...): {BY_HAND}"
        )
    if len(call.args) > 2 or given.intersection(UNKNOWN) or isinstance(dataset, ast.Starred):
        raise source.not_understood(
            call, f"the arguments of this loader are not all seen: {BY_HAND}"
        )
    _check_length(source, call, dataset)
    former = _former(source, call)
    _check_ranks(source, former)
    _check_uses(source, loop, name, call)
    text = "1" if size is None else source.code(size)
    if text == "None":
        raise source.not_understood(call, f"a loader without batches: {BY_HAND}")
    shared = former is not None or is_shared(source)
    if shared and workers is None:
        raise source.not_understood(
            call,
            f"each worker takes {text} samples for each step: say with --workers N for how many "
            "workers that was meant, so that a step has the same samples with any number of them",
        )
    batch = f"{text if text.isidentifier() or text.isdigit() else f'({text})'} * {workers}"
    whole = isinstance(dataset, ast.Name | ast.Attribute)
    its_name = source.code(dataset) if whole else source.free("dataset", "train_data")
    options = [its_name, f"global_batch={batch if shared and workers != 1 else text}"]
    dealt = call if former is None else former
    shuffle = argument(dealt, "shuffle")
    if shuffle is not None or former is None:
        options.append(f"shuffle={'False' if shuffle is None else source.code(shuffle)}")
    options += [f"{k.arg}={source.code(k.value)}" for k in dealt.keywords if k.arg == "seed"]
    options += [f"{k.arg}={source.code(k.value)}" for k in call.keywords if k.arg == "drop_last"]
    made = f"se.ElasticSampler({', '.join(options)})".replace(", shuffle=True", "")
    return ElasticData(
        call, made, f"{name}.batch_sampler", former, None if whole else dataset, its_name
    )


def _made(source: Source, loop: TrainingLoop, name: str) -> ast.Call:
    """Return the call that makes the loader, also where the function with the loop is given it."""
    scope = loop.scope
    values = source.values(name, scope)
    if isinstance(scope, Function) and name in [each.arg for each in scope.args.args]:
        (site,) = (c for c in nodes(source.tree, ast.Call) if dotted(c.func) == scope.name)
        place = [each.arg for each in scope.args.args].index(name)
        given = argument(site, name, place)
        values = source.values(dotted(given), source.scope(site)) if given is not None else ()
        values = values or ([given] if isinstance(given, ast.Call) else [])
    if len(values) != 1 or not isinstance(values[0], ast.Call):
        raise source.not_understood(
            loop.loop, f"how {name} is made is not seen, so its order cannot be kept: {BY_HAND}"
        )
    if any(isinstance(each, ast.For | ast.While) for each in source.around(values[0])):
        raise source.not_understood(values[0], f"{name} is made anew in a loop")
    line = statement_of(source, values[0])
    if source.lines[line.lineno - 1][: line.col_offset].strip():
        raise source.not_understood(values[0], "several statements on one line")
    return values[0]


def _former(source: Source, call: ast.Call) -> ast.Call | None:
    """Return the DistributedSampler that a loader is given, which is made in one place."""
    given = argument(call, "sampler")
    if given is None or isinstance(given, ast.Constant):
        return None
    values = source.values(dotted(given), source.scope(call)) if dotted(given) else [given]
    made = values[0] if len(values) == 1 else None
    if not isinstance(made, ast.Call) or not source.full_name(made.func).endswith(
        ".DistributedSampler"
    ):
        raise source.not_understood(
            call, f"what {source.code(given)} deals out is not seen in one place: {BY_HAND}"
        )
    return made


def _check_prepared(source: Source, name: str) -> None:
    """Refuse what accelerate has bound to the ranks that there are."""
    for call in calls(source.tree, "prepare", "prepare_data_loader"):
        for given in map(dotted, call.args):
            if given == name or "loader" in given.lower():
                raise source.not_understood(
                    call,
                    f"{given} is prepared by accelerate, which deals it out to the ranks that there "
                    "are: leave it out of prepare(), and move batches to accelerator.device. "
                    f"{BY_HAND}",
                )
            if "sched" in given.lower():
                raise source.not_understood(
                    call,
                    f"{given} is prepared by accelerate, and so makes as many steps as there are "
                    "workers: leave it out of prepare()",
                )


def _check_ranks(source: Source, former: ast.Call | None) -> None:
    """Refuse what else is dealt out to fixed ranks."""
    for call in nodes(source.tree, ast.Call):
        name = source.full_name(call.func)
        fixed = "DistributedSampler" in name or name.endswith("split_dataset_by_node")
        fixed = fixed or name.endswith((".shard", "setup_dataloaders"))
        fixed = fixed or any(each.arg in FIXED for each in call.keywords)
        if fixed and call is not former:
            raise source.not_understood(
                call,
                f"{source.code(call.func)}() deals out samples to the ranks that there are when it "
                f"is made, and their number changes: {BY_HAND}",
            )


def _check_uses(source: Source, loop: TrainingLoop, name: str, call: ast.Call) -> None:
    """Refuse other uses of the loader: another pass over it would take batches of the steps."""
    for each in nodes(source.tree, ast.Name):
        if each.id != name or not isinstance(each.ctx, ast.Load) or each is loop.over:
            continue
        around = next(source.around(each))
        is_length = isinstance(around, ast.Call) and dotted(around.func) == "len"
        is_data = isinstance(around, ast.Attribute) and around.attr in ("dataset", "num_workers")
        scope = getattr(loop.scope, "name", "")
        is_passed = isinstance(around, ast.Call) and scope == dotted(around.func) != ""
        is_passed = is_passed or isinstance(around, ast.keyword)
        if not (is_length or is_data or is_passed):
            raise source.not_understood(
                each,
                f"{name} is also used here: with an ElasticSampler it is for training alone, and "
                "has neither batch_size nor a sampler. Make another loader for this",
            )


def _check_length(source: Source, call: ast.Call, dataset: ast.expr) -> None:
    """Refuse a data set of a class of this script that has no length."""
    made = [dataset, *source.values(dotted(dataset), source.scope(call))]
    names = {dotted(each.func) for each in made if isinstance(each, ast.Call)}
    for each in nodes(source.tree, ast.ClassDef):
        if each.name in names and any("Iterable" in source.code(base) for base in each.bases):
            raise source.not_understood(
                call,
                f"{each.name} is iterable, and has no order that could be gone on in: {BY_HAND}",
            )
