"""Finds the objects that a training loop changes: models, optimizers, schedulers and scalers."""

import ast

from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.source import Source, calls, dotted, nodes, root_name

AVERAGES = ("AveragedModel",)
OF_MODELS = ("train", "eval", "parameters", "named_parameters")
"""Methods by which a model is known."""
WRAPPED = [
    "DistributedDataParallel",
    "DDP",
    "FullyShardedDataParallel",
    "FSDP",
    "fully_shard",
    "prepare",
]


def state_names(source: Source, loop: TrainingLoop) -> list[str]:
    """Return the names of the objects that are saved. Raises `NotUnderstood`."""
    kinds: dict[str, str] = {}
    for call in calls([loop.outermost], "step", "update", "update_parameters"):
        assert isinstance(call.func, ast.Attribute)
        held = call.func.value
        if isinstance(held, ast.Name):
            kinds[held.id] = _kind(source, loop, held.id)
        elif call.func.attr == "step":
            raise source.not_understood(
                call,
                f"{source.code(held)} belongs to an object, which has to be saved as a whole: "
                "name what it consists of in the state",
            )
        for passed in call.args if kinds.get(root_name(held)) == "scaler" else ():
            kinds[dotted(passed)] = "optimizer"
        if call.func.attr == "step" and not kinds[held.id]:  # type: ignore[attr-defined]
            raise source.not_understood(
                call, f"what {source.code(held)} is, whose step() is called, is not seen"
            )
    optimizers = [name for name, kind in kinds.items() if kind == "optimizer"]
    if not optimizers:
        raise source.not_understood(loop.loop, "no step() of an optimizer stands in this loop")
    if not [c for c in calls(loop.loop.body, "zero_grad") if _is_in_each_turn(source, c, loop)]:
        raise source.not_understood(
            loop.loop,
            "zero_grad() is not called in each turn of this loop: gradients are kept from one "
            "step to the next",
        )
    models = _models(source, loop, optimizers)
    if not models:
        raise source.not_understood(
            loop.loop, f"the model is not seen whose parameters {optimizers[0]} has"
        )
    others = [name for name, kind in kinds.items() if kind in ("scheduler", "scaler", "model")]
    found = list(dict.fromkeys([*models, *optimizers, *others]))
    for name in found:
        if not source.values(name, loop.scope) and name not in _parameters(loop):
            raise source.not_understood(
                loop.outermost, f"{name} is not made in the function that has the loop"
            )
    return found


def _is_in_each_turn(source: Source, call: ast.Call, loop: TrainingLoop) -> bool:
    for each in source.around(call):
        if each is loop.loop:
            return True
        if isinstance(each, ast.If | ast.For | ast.While | ast.Try):
            return False
    return False


def _parameters(loop: TrainingLoop) -> set[str]:
    return {each.arg for each in nodes(getattr(loop.scope, "args", loop.loop), ast.arg)}


def _kind(source: Source, loop: TrainingLoop, name: str) -> str:
    """Return what a name is: optimizer, scheduler, scaler, model; "" for anything else."""
    made = [source.full_name(v.func) for v in _made(source, loop, name)]
    if any("lr_scheduler" in each or "sched" in each.lower() for each in made):
        return "scheduler"
    last = {each.rpartition(".")[2] for each in made}
    if "GradScaler" in last:
        return "scaler"
    if last & {*AVERAGES}:
        return "model"
    if any(".optim." in f".{each}" for each in made):
        return "optimizer"
    zeroed = {dotted(call.func.value) for call in calls(loop.outermost, "zero_grad")}  # type: ignore[attr-defined]
    lowered = name.lower()
    if "sched" in lowered:
        return "scheduler"
    return "optimizer" if name in zeroed or "opt" in lowered else ""


def _made(source: Source, loop: TrainingLoop, name: str) -> list[ast.Call]:
    return [v for v in source.values(name, loop.scope) if isinstance(v, ast.Call)]


def _models(source: Source, loop: TrainingLoop, optimizers: list[str]) -> list[str]:
    """Return the models of the optimizers, and others that the loop uses by methods of models."""
    owners = [
        root_name(call.func)
        for name in optimizers
        for made in _made(source, loop, name)
        for call in calls(made, "parameters", "named_parameters")
    ]
    known = {root_name(call.func) for call in calls(loop.scope, *OF_MODELS)}
    used = {n.id for n in nodes(loop.outermost, ast.Name)} & known
    made = {n for n in used if source.values(n, loop.scope) or n in _parameters(loop)}
    return [name for name in dict.fromkeys([*owners, *sorted(made)]) if name and name != "self"]


def is_shared(source: Source) -> bool:
    """Return whether several workers train one model."""
    return bool(calls(source.tree, *WRAPPED))
