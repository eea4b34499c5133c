"""Finds what a training loop changes: its objects and its data.

Each has to be seen where it is made. What deals out samples to fixed ranks is refused.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from spotelastic.client.adapt.changes import arguments, reached, unsaved
from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.source import (
    Function,
    Source,
    argument,
    bound,
    calls,
    dotted,
    last_name,
    nodes,
    read,
    root_name,
)

WRAPPERS = ("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard")
REPLACED = ("batch_size", "shuffle", "sampler", "drop_last")
"""Arguments of a DataLoader that an ElasticSampler takes over."""
NO_MODULE = re.compile(r"Loss$|Parameter$|[.](functional|init|rnn|clip_grad)|_to_")
"""What of torch.nn is no module that has a state."""
FIXED = ("split_dataset_by_node", "shard", "setup_dataloaders", "prepare_data_loader")
BY_HAND = "give it an ElasticSampler by hand"


def state_names(source: Source, loop: TrainingLoop) -> list[str]:
    """Return the names of the objects that are saved. Raises `NotUnderstood`."""
    kinds: dict[str, str] = {}
    for call in calls(loop.outermost, "step", "update_parameters"):
        held = getattr(call.func, "value", None)
        if held is None:  # a function of the script's own
            continue
        name = dotted(held)
        kinds[name] = _kind(source, loop, name)
        if not kinds[name]:
            what = source.code(held)
            raise source.no(call, f"what {what} is, whose step() is called, is not seen")
        for given in call.args if kinds[name] == "scaler" else ():
            kinds[dotted(given)] = _kind(source, loop, dotted(given))
    optimizers = [name for name, kind in kinds.items() if kind == "optimizer"]
    zeroed = {
        root_name(call) for call in calls(loop.loop, "zero_grad") if _is_direct(source, call, loop)
    }
    if not optimizers:
        raise source.no(
            loop.loop, "no step() of an optimizer that is seen to be made stands in this loop"
        )
    owners: list[str] = []
    for name in optimizers:
        owners += _trained(source, loop, name, zeroed)
    used = {each.id for each in nodes(loop.outermost, ast.Name)}
    copies = [n for n in sorted(used) if _made_by(source, loop, n) == "copy.deepcopy"]
    if copies:
        raise source.no(loop.outermost, f"{copies[0]} is a copy that the loop may change")
    owners += used_modules(source, loop, {*owners, *kinds})
    found = [*dict.fromkeys([*owners, *kinds])]
    for name in found:
        if name in bound([loop.outermost]):
            raise source.no(loop.outermost, f"{name} is made anew in the loop")
        if not source.values(name, loop.scope):
            raise source.no(loop.outermost, f"{name} is not made in the function that has the loop")
    return found


def used_modules(source: Source, loop: TrainingLoop, known: set[str]) -> list[str]:
    """Return the modules that the loop uses besides those that are known.

    Raises `NotUnderstood` for what may keep something that no state_dict() has.
    """
    classes = {each.name: each for each in nodes(source.tree, ast.ClassDef)}
    ways = [each for kind in classes.values() for each in kind.body if isinstance(each, Function)]
    by_python = [way for way in ways if re.match(r"__(?!init__)|forward$", way.name)]
    parts = reached(source, [loop.outermost, *by_python])
    for kind in classes.values():
        made = calls(source.tree, kind.name)
        of_a_step = made and all(loop.loop in source.around(each) for each in made)
        if changed := None if of_a_step else unsaved(source, kind, parts):
            raise source.no(
                changed[0],
                f"{changed[1]}, which is not saved: make it a buffer, or a value of the state",
            )
    called = {dotted(call.func) for part in parts for call in nodes(part, ast.Call)}
    used = {*map(root_name, calls(source.tree, "to", "cuda", "parameters", "train", "eval"))}
    names = {name for part in parts for name in read(part)} - known - {*classes}
    found: dict[str, None] = {}
    for name in sorted(names):
        for value in source.values(name, loop.scope) if source.function(name) is None else ():
            full = source.maker(value) if isinstance(value, ast.Call) else ""
            own = isinstance(value, ast.Attribute) and root_name(value) not in source.imported
            if name in called and (own or full.endswith("partial")):
                raise source.no(value or loop.loop, f"what {name}() may change is not seen")
            made = [each for each in nodes(value or [], ast.Call) if each is value or not full]
            modules = [each for each in made if _is_module(source, classes, each)]
            if modules and not full:
                raise source.no(modules[0], f"{name} has modules: name each by itself")
            if full in classes or not full:
                keeps = bool(modules)
            elif {dotted(each) for each in getattr(value, "args", [])} & known:
                keeps = False  # it wraps what is saved
            else:
                is_used = name in called & used and not NO_MODULE.search(full)
                keeps = bool(modules) or is_used
            if keeps:
                found[name] = None
    return [*found]


def _is_module(source: Source, classes: Mapping[str, ast.ClassDef], made: ast.Call) -> bool:
    full = source.maker(made)
    kind = classes.get(full)
    bases = " ".join(source.code(base) for base in kind.bases) if kind else ""
    is_ours = full.startswith("torch.nn.") and not NO_MODULE.search(full)
    return "Module" in bases or is_ours


def _trained(source: Source, loop: TrainingLoop, name: str, zeroed: set[str]) -> list[str]:
    """Return the names of the models whose parameters an optimizer has."""
    more = [c for c in calls(source.tree, "add_param_group") if root_name(c) == name]
    made = [each for each in (source.made(name, loop.scope), *more) if each is not None]
    found = [root_name(call) for call in calls(made, "parameters", "named_parameters")]
    if not found:
        raise source.no(loop.loop, f"whose parameters {name} has is not seen where it is made")
    lone = [n for n in sorted(read(made) - {*found, name}) if _has_tensors(source, loop, n)]
    if lone:
        raise source.no(
            made[-1], f"{name} has {lone[0]}, a parameter of no model: keep it in the state, too"
        )
    if not zeroed & {name, *found}:
        raise source.no(
            loop.loop, f"zero_grad() of {name} does not stand in each turn: gradients are kept"
        )
    return found


def _has_tensors(source: Source, loop: TrainingLoop, name: str) -> bool:
    parts = [each for each in source.values(name, loop.scope) if each is not None]
    return any(source.maker(call).startswith("torch.") for call in nodes(parts, ast.Call))


def _is_direct(source: Source, call: ast.Call, loop: TrainingLoop) -> bool:
    around = source.around(source.statement(call))
    return next(each for each in around if not isinstance(each, ast.With)) is loop.loop


def _made_by(source: Source, loop: TrainingLoop, name: str) -> str:
    made = [v for v in source.values(name, loop.scope) if isinstance(v, ast.Call)]
    return source.full_name(made[0].func) if made else ""


def _kind(source: Source, loop: TrainingLoop, name: str) -> str:
    """Return what a name is: optimizer, scheduler, scaler, average; "" for anything else."""
    made_by = _made_by(source, loop, name)
    if "scheduler" in made_by:
        return "scheduler"
    if made_by.endswith((".GradScaler", ".AveragedModel")):
        return "scaler" if made_by.endswith("GradScaler") else "average"
    return "optimizer" if ".optim." in f".{made_by}" else ""


def is_shared(source: Source) -> bool:
    """Return whether several workers train one model."""
    return bool(calls(source.tree, *WRAPPERS))


@dataclass(frozen=True, slots=True)
class ElasticData:
    """A loader that gets an `ElasticSampler`."""

    call: ast.Call
    made: str
    """The expression that makes the sampler."""
    former: ast.Call | None
    """The DistributedSampler in whose place it is."""
    trains: bool
    """Whether the loop goes over it; if not, it is for evaluations."""


def elastic_data(source: Source, loop: TrainingLoop, workers: int | None) -> list[ElasticData]:
    """Return the loaders that get an `ElasticSampler`: the loop's, if it goes over one, and others.

    `workers`: how many workers the script's batch size was meant for. Raises `NotUnderstood`.
    """
    name = dotted(loop.over) if loop.target is not None else ""
    for prepared in calls(source.tree, "prepare"):
        raise source.no(
            prepared,
            "accelerate's prepare() binds a loader to the ranks that there are, and a scheduler "
            "steps as often as there are workers: leave both out of it, move batches to "
            "accelerator.device, and name what it returns for model and optimizer in the state",
        )
    call = source.made(name, loop.scope) if name else None
    former = _former(source, call, trains=True) if call is not None else None
    others = [each for each in calls(source.tree, "DataLoader") if each is not call]
    formers = {each: made for each in others if (made := _former(source, each, trains=False))}
    for each in nodes(source.tree, ast.Call):
        fixed = "DistributedSampler" in source.full_name(each.func) or last_name(each.func) in FIXED
        dealt_out = fixed or argument(each, "num_replicas")
        if dealt_out and each is not former and each not in formers.values():
            raise source.no(
                each,
                f"{source.code(each.func)}() deals out samples to the ranks that there are when it "
                f"is made, and they change: {BY_HAND}",
            )
    found = [_elastic(source, loop, *each, workers) for each in formers.items()]
    if not name:
        return found
    if call is None or last_name(call.func) != "DataLoader":
        raise source.no(
            loop.loop, f"{name} is not seen to be made once, by a DataLoader: {BY_HAND}"
        )
    return [_elastic(source, loop, call, former, workers), *found]


def _elastic(
    source: Source, loop: TrainingLoop, call: ast.Call, former: ast.Call | None, workers: int | None
) -> ElasticData:
    line = source.statement(call)
    trains = call is source.made(dotted(loop.over), loop.scope)
    name = dotted(loop.over if trains else getattr(line, "targets", [None])[0])
    dataset, size = argument(call, "dataset", 0), argument(call, "batch_size", 1)
    given = {each.arg for each in call.keywords}
    if not dotted(dataset) or len(call.args) > 2 or given & {"batch_sampler", "generator", None}:
        made = "not all arguments are seen" if dotted(dataset) else "the data set has no name"
        first = (
            f"data = {source.code(dataset)}" if dataset is not None and not dotted(dataset) else ""
        )
        how = f"write `{first}` in a line before, and use that" if first else BY_HAND
        raise source.no(call, f"{made}: {how}")
    if any(isinstance(each, ast.For | ast.While) for each in source.around(call)) or (
        source.lines[line.lineno - 1][: line.col_offset].strip()
    ):
        raise source.no(call, f"{name} is made in a loop, or is not alone on its line")
    made_by = source.maker(source.made(dotted(dataset), source.scope(call)))
    for each in nodes(source.tree, ast.ClassDef):
        if each.name == made_by and any("Iterable" in source.code(base) for base in each.bases):
            raise source.no(call, f"{made_by} has no order that could be gone on in: {BY_HAND}")
    sampler = dotted(argument(call, "sampler")) if former is not None else ""
    for use in nodes(source.tree, ast.Name):
        if isinstance(use.ctx, ast.Load) and (why := _misuse(source, use, name, sampler, loop)):
            raise source.no(use, f"{use.id} is used here as well: {why}")
    text = source.code(size) if size is not None else "1"
    shared = former is not None or is_shared(source)
    if shared and workers is None:
        raise source.no(
            call,
            f"each worker takes {text} samples for each step: say with --workers N for how many "
            "workers that was meant, so that a step has the same samples with any number of them",
        )
    short = text if re.fullmatch(r"[\w.]+", text) else f"({text})"
    batch = f"{short} * {workers}" if shared else text
    options = [dotted(dataset), f"global_batch={batch}"]
    dealt = former or call
    shuffle = argument(dealt, "shuffle")
    told = source.code(shuffle) if shuffle is not None else str(former is not None)
    options += [f"shuffle={told}"] if told != "True" else []
    more = [*(each for each in dealt.keywords if each.arg == "seed"), *call.keywords]
    options += [source.code(each) for each in more if each.arg in ("seed", "drop_last")]
    made = f"{source.library}.ElasticSampler({', '.join(options)})"
    return ElasticData(call, made, former, trains)


def _misuse(source: Source, use: ast.Name, name: str, sampler: str, loop: TrainingLoop) -> str:
    """Return why a loader of this name, or its sampler, cannot be used so; "" if it can."""
    around = next(source.around(use), None)
    attribute = getattr(around, "attr", "")
    if use.id == sampler and attribute != "set_epoch" and not isinstance(around, ast.keyword):
        return "an ElasticSampler counts batches, and has other attributes"
    if use.id != name or (isinstance(around, ast.Call) and dotted(around.func) == "len"):
        return ""
    trains = name == dotted(loop.over)
    fits = use is loop.over or attribute == "dataset" if trains else attribute not in REPLACED
    own = any(isinstance(each, Function) and name in arguments(each) for each in source.around(use))
    only = "is for training alone, and " if trains else ""
    none = f"with an ElasticSampler it {only}has no batch_size and no sampler of its own"
    return "" if fits or own else f"{none}. Make another one"


def _former(source: Source, call: ast.Call, *, trains: bool) -> ast.Call | None:
    """Return the DistributedSampler that a loader is given, which is made in one place."""
    given = argument(call, "sampler")
    if given is None or isinstance(given, ast.Constant):
        return None
    made = source.made(dotted(given), source.scope(call))
    is_one = made is not None and source.full_name(made.func).endswith("DistributedSampler")
    if trains and not is_one:
        raise source.no(call, f"what {source.code(given)} deals out is not seen: {BY_HAND}")
    return made if is_one else None
