"""Finds what a training loop changes: the model, optimizers, schedulers and scalers, by name."""

from collections.abc import Iterable, Mapping

import libcst as cst

from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.source import (
    Source,
    calls,
    first_name,
    found,
    last_name,
)

AVERAGES = ("AveragedModel", "EMA", "ModelEmaV2", "ExponentialMovingAverage")
OF_MODELS = ("train", "eval", "parameters", "load_state_dict")
"""Methods by which a model is known, if its optimizer does not name it."""
SCALERS = ("GradScaler",)


def state_names(source: Source, loop: TrainingLoop) -> tuple[str, ...]:
    """Return the names of what is saved, in the scope of the outermost loop.

    Raises `NotUnderstood` if no optimizer or no model is found.
    """
    scope = source.scope(loop.outermost)
    given = passed(source, loop)
    stepped = [_called_on(call) for call in calls(loop.region, "step", "update")]
    stepped += [first_name(arg.value) for call in calls(loop.region, "step") for arg in call.args]
    named = [given.get(name, name) for name in stepped if name]
    if loop.epochs is not None:
        named += [_called_on(call) for call in calls(loop.epochs.body, "step")]
    own = {first_name(call.func) for call in calls(source.module, "destroy_process_group")}
    names = [name for name in dict.fromkeys(named) if name and name not in own]
    kinds = {name: _kind(source, name, scope) for name in names}
    optimizers = [name for name, kind in kinds.items() if kind == "optimizer"]
    if not optimizers and "self" in names:
        raise source.not_understood(
            loop.loop,
            "the optimizer belongs to an object (self): write the Checkpointer by hand",
        )
    if not optimizers:
        raise source.not_understood(
            loop.loop, "no optimizer was found whose step() this loop calls"
        )
    models = _models(source, loop, optimizers, scope, given)
    if not models:
        raise source.not_understood(
            loop.loop, f"the model was not found that {optimizers[0]} changes"
        )
    others = [name for name, kind in kinds.items() if kind in ("scheduler", "scaler")]
    averages = [
        target.target.value
        for each in found(scope, cst.Assign)
        if isinstance(each.value, cst.Call) and last_name(each.value.func) in AVERAGES
        for target in each.targets
        if isinstance(target.target, cst.Name)
    ]
    return tuple(dict.fromkeys([*models, *optimizers, *others, *averages]))


def passed(source: Source, loop: TrainingLoop) -> dict[str, str]:
    """Return what the parameters of the functions that make a step stand for, in their callers."""
    names: dict[str, str] = {}
    if loop.call is not None and isinstance(loop.scope, cst.FunctionDef):
        names = _arguments(loop.call, loop.scope)
    if loop.step_call is not None and isinstance(loop.region, cst.FunctionDef):
        inner = _arguments(loop.step_call, loop.region)
        names = names | {name: names.get(value, value) for name, value in inner.items()}
    return names


def _arguments(call: cst.Call, function: cst.FunctionDef) -> dict[str, str]:
    """Return the name that each parameter is given; those that get no plain name are left out."""
    parameters = [each.name.value for each in function.params.params]
    given: dict[str, str] = {}
    position = 0
    for arg in call.args:
        if arg.keyword is not None:
            given[arg.keyword.value] = first_name(arg.value)
        elif not arg.star and position < len(parameters):
            given[parameters[position]] = first_name(arg.value)
            position += 1
    return {name: value for name, value in given.items() if value}


def _called_on(call: cst.Call) -> str:
    """Return the name on which a method is called."""
    return first_name(call.func) if isinstance(call.func, cst.Attribute) else ""


def _kind(source: Source, name: str, scope: cst.CSTNode) -> str:
    """Return what a name is: optimizer, scheduler, scaler, or "" for anything else."""
    for each in source.assigned(name, scope):
        if isinstance(each.value, cst.Call):
            return _kind_of_call(source.code(each.value.func), each.value)
    lowered = name.lower()
    if "sched" in lowered:
        return "scheduler"
    if "scaler" in lowered:
        return "scaler"
    zeroed = (_called_on(call) for call in calls(source.module, "zero_grad"))
    return "optimizer" if "opt" in lowered or name in set(zeroed) else ""


def _kind_of_call(made_by: str, call: cst.Call) -> str:
    last = made_by.rpartition(".")[2]
    if last in SCALERS:
        return "scaler"
    if "lr_scheduler" in made_by or "sched" in last.lower() or last.endswith("LR"):
        return "scheduler"
    takes_parameters = bool(calls(call, "parameters", "named_parameters"))
    is_known = "optim" in made_by.lower() or last in ("Adam", "AdamW", "SGD", "RMSprop", "Lion")
    return "optimizer" if is_known or takes_parameters else ""


def _models(
    source: Source,
    loop: TrainingLoop,
    optimizers: Iterable[str],
    scope: cst.CSTNode,
    given: Mapping[str, str],
) -> list[str]:
    """Return the models whose parameters the optimizers were given, else those that are trained."""
    named: list[str] = []
    for name in optimizers:
        for each in source.assigned(name, scope):
            named += _owners(each.value)
            if not named and isinstance(each.value, cst.Call) and each.value.args:
                groups = source.assigned(first_name(each.value.args[0].value), scope)
                named += [owner for group in groups for owner in _owners(group.value)]
    if not named:
        known = [_called_on(call) for call in calls(source.module, *OF_MODELS)]
        used = {first_name(call.func) for call in found(loop.region, cst.Call)}
        named = [given.get(name, name) for name in known if name in used or name in given]
        named = [name for name in named if name not in optimizers]
    return [name for name in dict.fromkeys(named) if name and name != "self"]


def _owners(value: cst.BaseExpression) -> list[str]:
    """Return the models whose `parameters()` occur in an expression."""
    return [_called_on(call) for call in calls(value, "parameters", "named_parameters")]
