"""Hypothesis strategies for lives of a state: what a script makes, and what its run makes of that.

A life is a script (`begin`), the changes that a run makes to its state between two saves, and the
script as it is at the restart, which may build its groups of parameters in another order.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

State = dict[str, Any]
Change = Callable[[State], None]


class Model(nn.Module):
    """With a place that is empty at first, for a buffer and for a parameter."""

    queue: torch.Tensor
    wave: torch.Tensor | None
    seen: torch.Tensor | None
    scale: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 3), nn.Linear(3, 2)
        self.register_buffer("queue", torch.zeros(0, 2))
        self.register_buffer("wave", torch.tensor([1 + 2j, 3j]))
        self.register_buffer("seen", None)
        self.register_parameter("scale", None)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.two(self.one(given)).sum()
        return made if self.scale is None else made * self.scale.sum()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(0.01), amsgrad=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
}


def _in_turn(o: torch.optim.Optimizer) -> Any:
    parts = [schedules.LinearLR(o, 0.1, total_iters=2), schedules.CosineAnnealingLR(o, 5)]
    return schedules.SequentialLR(o, parts, milestones=[2])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: schedules.LambdaLR(o, lambda epoch: 0.5**epoch),
    "warm": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "step": lambda o: schedules.StepLR(o, 2),
    "milestones": lambda o: schedules.MultiStepLR(o, [1, 3]),
    "exponential": lambda o: schedules.ExponentialLR(o, 0.5),
    "in turn": _in_turn,
    "chained": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.5), schedules.LambdaLR(o, lambda epoch: 0.9**epoch)]
    ),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
    "cycle": lambda o: schedules.CyclicLR(
        o, [0.01 * (n + 1) for n, _ in enumerate(o.param_groups)], 0.5, 2,
        cycle_momentum="momentum" in o.param_groups[0],
    ),
    "one cycle": lambda o: schedules.OneCycleLR(
        o, 0.3, total_steps=50, cycle_momentum="momentum" in o.param_groups[0]
    ),
}  # fmt: skip

OPTIONS = st.recursive(
    st.one_of(st.none(), st.integers(0, 3), st.text(max_size=2)),
    lambda within: st.dictionaries(st.sampled_from(["a", "b", "c"]), within, max_size=2),
    max_leaves=4,
)


@dataclass(frozen=True)
class Life:
    """`begin` and `again` take what is done to the model before its optimizer is made."""

    begin: Callable[..., State]
    changes: Sequence[Sequence[Change]]
    """Those before each save."""
    again: Callable[..., State]


def train(state: State) -> None:
    model, optimizer, scheduler = state["model"], state["optimizer"], state.get("scheduler")
    loss = model(torch.ones(2, 2))
    state["scaler"].scale(loss).backward()
    state["scaler"].step(optimizer)
    state["scaler"].update()
    optimizer.zero_grad()
    _schedule(scheduler)
    if "average" in state:
        state["average"].update_parameters(model.one)


def _schedule(scheduler: Any) -> None:
    if isinstance(scheduler, schedules.ReduceLROnPlateau):
        scheduler.step(1.0)
    elif scheduler is not None:
        scheduler.step()


def step(state: State) -> None:
    """Train without a forward, in which ranks would have to talk to each other."""
    optimizer = state["optimizer"]
    for group in optimizer.param_groups:
        for each in group["params"]:
            each.grad = torch.full_like(each, 0.5)
    optimizer.step()
    optimizer.zero_grad()
    _schedule(state.get("scheduler"))


def on_any_rank(change: Change) -> Change:
    """Return the change, or a step in place of one for which ranks would have to talk."""
    return step if change in (train, _prune) else change


def _grow(state: State) -> None:
    state["model"].queue = torch.cat([state["model"].queue, torch.rand(1, 2)])


def _shrink(state: State) -> None:
    state["model"].queue = state["model"].queue[1:].clone()


def _fill(state: State) -> None:
    state["model"].seen = torch.rand(4)


def _leave(state: State) -> None:
    state["model"].wave = None


def _conjugate(state: State) -> None:
    if state["model"].wave is not None:
        state["model"].wave.data = state["model"].wave.data.conj()


def _view(state: State) -> None:
    wave = state["model"].wave
    if wave is not None:
        state["model"].wave = wave.resolve_conj().view(torch.complex64)


def _prune(state: State) -> None:
    """As splatting does: a parameter of another length takes a parameter's place everywhere."""
    model, optimizer = state["model"], state["optimizer"]
    old = model.one.bias
    keep = torch.tensor([0, 2] if len(old) == 3 else [0, 1, 1])
    new = nn.Parameter(old.detach()[keep].clone())
    for each in (model.one, model.two):
        if each is model.one:
            each.weight = _replaced(optimizer, each.weight, each.weight.detach()[keep].clone())
        else:
            each.weight = _replaced(optimizer, each.weight, each.weight.detach()[:, keep].clone())
    model.one.bias = _replaced(optimizer, old, new.detach())
    state.pop("average", None)


def _replaced(
    optimizer: torch.optim.Optimizer, old: nn.Parameter, data: torch.Tensor
) -> nn.Parameter:
    new = nn.Parameter(data)
    optimizer.state.pop(old, None)
    for group in optimizer.param_groups:
        group["params"] = [new if each is old else each for each in group["params"]]
    return new


def _appear(state: State) -> None:
    if state["model"].scale is None:
        state["model"].scale = nn.Parameter(torch.rand(2))
        state["optimizer"].add_param_group({"params": [state["model"].scale]})
        state.pop("scheduler", None)  # it has no entry for a group that it does not know


def _note(value: Any) -> Change:
    return lambda state: state.update(best=value)


def _hold(state: State) -> None:
    shared = torch.rand(2)
    state["held"].update(
        shared=shared,
        again=shared,
        parameter=nn.Parameter(torch.rand(1)),
        trained=torch.rand(1, requires_grad=True),
        frozen=nn.Parameter(torch.rand(1), requires_grad=False),
        deep={"list": [torch.rand(len(state["held"]))]},
    )


def _drop(state: State) -> None:
    state.pop("losses", None)


def _lose(state: State) -> None:
    if "losses" in state:
        state["losses"] = torch.cat([state["losses"], torch.rand(1)])


def _option(value: Any) -> Change:
    def change(state: State) -> None:
        state["optimizer"].param_groups[0]["extra"] = value

    return change


def add_own(state: State) -> None:
    for own in state["optimizer"].state.values():
        own["memory"] = {"empty": {}, "rows": [torch.rand(2), {}]}


CHANGES = st.one_of(
    st.sampled_from([train, train, _grow, _shrink, _fill, _leave, _conjugate, _view]),
    st.sampled_from([_prune, _appear, _hold, _drop, _lose, add_own]),
    st.one_of(OPTIONS, st.builds(torch.ones, st.integers(0, 3))).map(_note),
    OPTIONS.map(_option),
)


@st.composite
def lives(draw: st.DrawFn, *, averaged: bool = True, optimizers: Any = OPTIMIZERS) -> Life:
    optimizer = optimizers[draw(st.sampled_from(sorted(optimizers)))]
    scheduler = draw(st.sampled_from([None, *sorted(SCHEDULERS)]))
    averages, option = averaged and draw(st.booleans()), draw(OPTIONS)
    ema: Any = get_ema_multi_avg_fn(0.9)
    orders = [draw(st.permutations(range(4))) for _ in range(2)]

    def made(order: Sequence[int], distribute: Callable[[Model], Any] = lambda it: it) -> State:
        torch.manual_seed(0)
        model = distribute(Model())
        parameters = [*model.one.parameters(), *model.two.parameters()]
        groups = [
            {"params": [parameters[n]], "lr": 0.01 * (n + 1), "extra": copy.deepcopy(option)}
            for n in order
        ]
        state: State = {"model": model, "optimizer": optimizer(groups), "held": {}}
        state |= {"scaler": torch.amp.GradScaler("cpu", init_scale=4.0), "losses": torch.zeros(0)}
        if scheduler is not None:
            state["scheduler"] = SCHEDULERS[scheduler](state["optimizer"])
        if averages:
            state["average"] = AveragedModel(model.one, multi_avg_fn=ema)
        return state

    changes = draw(st.lists(st.lists(CHANGES, max_size=3), min_size=1, max_size=3))
    return Life(partial(made, orders[0]), changes, partial(made, orders[1]))


def by_parameter(state: State) -> dict[str, Any]:
    """The options of each parameter's group, without what its place in the list decides."""
    names = {id(each): name for name, each in state["model"].named_parameters()}
    return {
        names[id(each)]: _sorted({key: group[key] for key in group if key != "params"})
        for group in state["optimizer"].param_groups
        for each in group["params"]
    }


def _sorted(found: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(found.items()))


_OBJECTS = "optimizer", "scheduler", "scaler"


def essence(state: State) -> dict[str, Any]:
    """The state, with what has an order that the script decides by the names of parameters."""
    names = {id(each): name for name, each in state["model"].named_parameters()}
    moments = {names[id(each)]: _sorted(own) for each, own in state["optimizer"].state.items()}
    scheduler, held = state.get("scheduler"), state["held"]
    others = {key: value for key, value in state.items() if key not in _OBJECTS}
    return {
        **_sorted(others),
        "scaler": state["scaler"].state_dict(),
        "moments": _sorted(moments),
        "groups": _sorted(by_parameter(state)),
        "is one": held.get("shared") is held.get("again"),
        "epoch": getattr(scheduler, "last_epoch", None),
    }
