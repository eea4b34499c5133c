"""Trains models that are bound to their ranks, which are made anew for each round."""

import functools
import gc
import hashlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotelastic_checkpoints.types import Schedule
from support.in_place.resting_agent import Agent, Case, Plan, Script, Worker, run
from support.in_place.resting_nodes import on_nodes
from support.training.devices import BACKEND, DEVICE, begin, use
from support.training.open_checkpointer import wait_for_slots
from torch import nn
from torch.distributed import TCPStore
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader

import spotelastic as se
from spotelastic.training import checkpointer  # noqa: F401  # once for all workers
from spotelastic.training.in_place import watching

STEPS, SAVED, AT, TARGET = 7, 2, 4, 3
SAMPLES, BATCH, ROUNDS = 24, 6, 10
EVERY = Schedule(SAVED, 0)
DOCS = Path(__file__).parents[3] / "docs"
logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
WHOLE = StateDictOptions(full_state_dict=True)

Parts = dict[str, Any]


def layers() -> Any:
    torch.manual_seed(0)
    parts = nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Linear(12, 2)
    return nn.Sequential(*parts).to(DEVICE, torch.float64)


def parts_of(model: Any) -> Parts:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def sharded() -> Parts:
    """By FSDP2, over all ranks."""
    model = layers()
    for part in model:
        if isinstance(part, nn.Linear):
            fully_shard(part)
    fully_shard(model)
    return parts_of(model)


def pairs(across: str, within: str) -> DeviceMesh:
    """The mesh of all ranks by pairs; of one column, where their number is odd."""
    world = dist.get_world_size()
    size = 2 if world % 2 == 0 else 1
    return init_device_mesh(DEVICE, (world // size, size), mesh_dim_names=(across, within))


def hybrid() -> Parts:
    """By FSDP2 over pairs of ranks, where there are pairs; each pair has a replica."""
    mesh = pairs("copies", "shards")
    model = layers()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return parts_of(model)


def parallel() -> Parts:
    """By tensor parallelism over pairs of ranks, where there are pairs, and by FSDP2 over these."""
    mesh = pairs("data", "tensor")
    model = layers()
    plan: Any = {"2": ColwiseParallel(), "3": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    return parts_of(model)


BUILDS: dict[str, Callable[[], Parts]] = {
    "sharded": sharded,
    "hybrid": hybrid,
    "parallel": parallel,
}


def loss_of(parts: Parts, rows: torch.Tensor, size: int) -> torch.Tensor:
    """The mean over `size` rows, of which this rank has some."""
    found: torch.Tensor = parts["model"](rows.to(DEVICE)).square().sum()
    return found * dist.get_world_size() / size


def train(parts: Parts, rows: torch.Tensor, size: int) -> torch.Tensor:
    loss = loss_of(parts, rows, size)
    loss.backward()
    parts["optimizer"].step()
    parts["optimizer"].zero_grad()
    parts["scheduler"].step()
    return loss.detach()


def share(build: str, step: int) -> torch.Tensor:
    """This rank's rows. The ranks of a tensor-parallel pair have the same."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if build == "parallel" and world % 2 == 0:
        rank, world = rank // 2, world // 2
    generator = torch.Generator().manual_seed(step)
    return torch.randn(24, 6, dtype=torch.float64, generator=generator)[rank::world]


def rows_of(build: str) -> int:
    """Over which the loss is a mean, as `loss_of` takes it."""
    return 24 * (2 if build == "parallel" and dist.get_world_size() % 2 == 0 else 1)


def digest(parts: Parts) -> str:
    """All parameters and moments, whole. All ranks call it."""
    model, optimizer = get_state_dict(parts["model"], parts["optimizer"])
    states: Any = optimizer["state"]
    moments = [part for each in states.values() for part in each.values()]
    whole: list[Any] = [
        tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for tensor in (*model.values(), *moments)
    ]
    data = b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in whole)
    return hashlib.sha256(data).hexdigest()[:16]


class Accident:
    """Ends this process in the forward or backward pass of a step."""

    def __init__(self, *, is_victim: bool, place: str) -> None:
        self._is_victim, self._place = is_victim, place
        self.step = 0

    def looks_at(self, parts: Parts) -> Parts:
        last = parts["model"][3]
        if self._place == "forward":
            last.register_forward_pre_hook(lambda *_: self._happens())
        else:
            last.register_full_backward_hook(lambda *_: self._happens())
        return parts

    def _happens(self) -> None:
        if self._is_victim and self.step == AT:
            os.kill(os.getpid(), signal.SIGKILL)


def losing(build: str, victim: int, place: str = "backward") -> Script:
    """Steps of which one loses a rank. What the script holds of a model does not matter."""

    def script(number: int, tell: Callable[[Any], None]) -> None:
        wait_for_slots()
        watching.watch()
        begin(number)
        accident = Accident(is_victim=number == victim, place=place)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=1.0)
        state: Parts = {"scaler": scaler}
        held: list[Any] = []

        def made() -> Parts:
            parts = [part for model in held for part in model.parameters()]
            left = sum(getattr(part, "_local_tensor", part).numel() for part in parts)
            tell(["built", dist.get_world_size(), left])
            return accident.looks_at(BUILDS[build]())

        with se.Checkpointer(state, build=made, overlap=False) as checkpoint:
            for step in checkpoint.steps(STEPS):
                accident.step = step.number
                if state["model"] not in held:
                    held.append(state["model"])
                with step:
                    step.loss = train(state, share(build, step.number), rows_of(build))
                tell([step.number, step.finished, dist.get_world_size()])
            rate = state["scheduler"].get_last_lr()
            tell({"digest": digest(state), "lr": rate, "models": len(held)})
            os._exit(0)

    return script


def arriving(number: int, tell: Callable[[Any], None]) -> None:
    """A rank comes. The samples of an epoch come once."""
    wait_for_slots()
    watching.watch()
    begin(number)
    sampler = se.ElasticSampler(SAMPLES, BATCH, seed=1)
    rows: Any = range(SAMPLES)
    loader: DataLoader[Any] = DataLoader(rows, batch_sampler=sampler)
    state: Parts = {"data": sampler}
    with se.Checkpointer(state, build=sharded, overlap=False) as checkpoint:
        batches = checkpoint.batches(loader)
        for step in checkpoint.steps(STEPS):
            with step:
                samples, world = next(batches), dist.get_world_size()
                given = samples.double().unsqueeze(1) * torch.ones(6, dtype=torch.float64)
                step.loss = train(state, given / SAMPLES, BATCH)
            if step.finished:
                tell([step.number, world, samples.tolist()])
        tell({"digest": digest(state), "lr": state["scheduler"].get_last_lr()})
        os._exit(0)


class Block(nn.Module):
    """A part that is compiled alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(rows).tanh())
        return result


def often(number: int, tell: Callable[[Any], None]) -> None:
    """Many rounds of the same ranks. What the script holds of earlier rounds costs nothing."""
    wait_for_slots()
    begin(number)
    state: Parts = {}
    graphs = []

    def counting(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def built() -> Parts:
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block(), nn.Linear(6, 2)).to(DEVICE, torch.float64)
        for part in model:
            part.compile(backend=counting)
            fully_shard(part)
        fully_shard(model)
        return parts_of(model)

    with se.Checkpointer(state, build=built, overlap=False) as checkpoint:
        for step in checkpoint.steps(ROUNDS + 3):
            with step:
                step.loss = train(state, share("sharded", step.number), 24)
            if step.finished:
                tell([step.number, *sizes(), len(graphs), digest(state)])
        os._exit(0)


def sizes() -> list[int]:
    """Descriptors, threads, and what there is of earlier rounds."""
    models = [each for each in gc.get_objects() if type(each) is torch.optim.AdamW]
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return [
        len([*Path("/proc/self/fd").iterdir()]),
        threading.active_count(),
        len(models),
        len(tensors),
    ]


def ask(agent: Agent, worker: Worker, told: Any) -> None:
    if worker.number == 0 and told[0] % 2 == 0 and told[0] <= ROUNDS:
        agent.rest()


def mistaken(mistake: str) -> Script:
    """A script that makes a mistake when the ranks have changed."""

    def script(number: int, tell: Callable[[Any], None]) -> None:
        wait_for_slots()
        begin(number)
        state: Parts = {}
        first: Parts = {}

        def built() -> Parts:
            if first and mistake == "raises":
                raise KeyError("hidden_size")
            parts = sharded()
            if first and mistake == "shapes":
                model = nn.Sequential(nn.Linear(7, 12), *layers()[1:]).to(DEVICE, torch.float64)
                fully_shard(model)
                parts = parts_of(model)
            return parts

        try:
            with se.Checkpointer(state, build=built, overlap=False) as checkpoint:
                for step in checkpoint.steps(STEPS):
                    first = first or dict(state)
                    parts = first if mistake == "former" else state
                    with step:
                        step.loss = train(parts, share("sharded", step.number), 24)
                    if step.finished:
                        tell(step.number)
        except Exception as error:
            notes = getattr(error, "__notes__", [])
            tell([type(error).__name__, str(error), *notes])
        os._exit(0)

    return script


def asks_once(agent: Agent, worker: Worker, told: Any) -> None:
    if worker.number == 0 and told == SAVED + 1:
        agent.rest()


def reference(build: str, worlds: list[tuple[int, int, int]], *, samples: bool = False) -> Script:
    """The same in plain torch: (ranks, first step, last step). The state is taken along whole."""

    def script(number: int, tell: Callable[[Any], None]) -> None:
        use(number)
        port = int(os.environ["MASTER_PORT"])
        file = Path(os.environ["SPOTELASTIC_CONTROL"]).with_name("whole")
        for world, first, last in worlds:
            if number >= world:
                continue
            store = dist.PrefixStore(f"{world}-{first}", TCPStore("127.0.0.1", port))
            dist.init_process_group(BACKEND, store=store, rank=number, world_size=world)
            parts = BUILDS[build]()
            if file.exists():
                model, moments, rate = torch.load(file, weights_only=False)
                set_state_dict(
                    parts["model"],
                    parts["optimizer"],
                    model_state_dict=model,
                    optim_state_dict=moments,
                    options=WHOLE,
                )
                parts["scheduler"].load_state_dict(rate)
            for step in range(first, last + 1):
                given, size = share(build, step), rows_of(build)
                if samples:
                    sampler = se.ElasticSampler(SAMPLES, BATCH, seed=1, check=False)
                    for _ in range(step - 1):
                        sampler.advance()
                    own = torch.tensor(next(iter(sampler))).double().unsqueeze(1)
                    given = own * torch.ones(6, dtype=torch.float64) / SAMPLES
                    size = BATCH
                train(parts, given, size)
            tell({"digest": digest(parts), "lr": parts["scheduler"].get_last_lr()})
            states = get_state_dict(parts["model"], parts["optimizer"], options=WHOLE)
            if number == 0:
                torch.save((*states, parts["scheduler"].state_dict()), file)
            dist.destroy_process_group()
        os._exit(0)

    return script


def example(number: int, tell: Callable[[Any], None]) -> None:
    """The script of the how-to."""
    wait_for_slots()
    watching.watch()
    page = (DOCS / "how-to" / "in-place.md").read_text()
    [script] = [part for part in page.split("```python\n")[1:] if "def build():" in part]
    space: Parts = {"__name__": "__main__"}
    short = script.split("```")[0].replace(".steps(1000)", ".steps(40)")
    exec(compile(short, "in-place.md", "exec"), space)
    world, finished = dist.get_world_size(), space["step"].number
    tell([finished, world, digest(space["state"]), space["sampler"].state_dict()])
    os._exit(0)


def lost(name: str, build: str, count: int, place: str, folder: Path) -> Agent:
    script = losing(build, victim=count - 1, place=place)
    return on_nodes(name, count, script, folder, lambda _: Plan(), EVERY)


def moved(name: str, build: str, count: int, folder: Path) -> Agent:
    """The first rank is lost, and another one comes: as many ranks, each with another number."""
    script = losing(build, victim=0)
    return on_nodes(name, count + 1, script, folder, lambda _: Plan(later=[count]), EVERY)


def arrived(folder: Path) -> Agent:
    def plan(_: Any) -> Plan:
        return Plan(later=[2])

    return on_nodes("built-arrival", 3, arriving, folder, plan, Schedule(1, 0), TARGET)


def many(folder: Path) -> Agent:
    return on_nodes("built-often", 2, often, folder, lambda _: Plan(on_told=ask), Schedule(1, 0))


def shown(folder: Path) -> Agent:
    def plan(_: Any) -> Plan:
        return Plan(later=[2])

    return on_nodes("built-example", 3, example, folder, plan, EVERY, 20)


def mistakes(mistake: str, folder: Path) -> Agent:
    script, name = mistaken(mistake), f"built-{mistake}"
    return on_nodes(name, 2, script, folder, lambda _: Plan(on_told=asks_once), EVERY)


def referred(
    name: str,
    build: str,
    count: int,
    worlds: list[tuple[int, int, int]],
    folder: Path,
    *,
    samples: bool = False,
) -> Agent:
    script = reference(build, worlds, samples=samples)
    return run(count, script, folder / name, Plan())


THREE_TO_TWO = [(3, 1, SAVED), (2, SAVED + 1, STEPS)]
FOUR_TO_THREE = [(4, 1, SAVED), (3, SAVED + 1, STEPS)]
TWO_TO_THREE = [(2, 1, TARGET), (3, TARGET + 1, STEPS)]
MISTAKES = ("raises", "shapes", "former")

CASES: dict[str, Case] = {
    "built-forward": functools.partial(lost, "built-forward", "sharded", 3, "forward"),
    "built-backward": functools.partial(lost, "built-backward", "sharded", 3, "backward"),
    "built-hybrid": functools.partial(lost, "built-hybrid", "hybrid", 4, "backward"),
    "built-parallel": functools.partial(lost, "built-parallel", "parallel", 4, "backward"),
    "built-moved": functools.partial(moved, "built-moved", "sharded", 3),
    "built-moved-2d": functools.partial(moved, "built-moved-2d", "parallel", 4),
    "reference-moved": functools.partial(
        referred, "reference-moved", "sharded", 3, [(3, 1, SAVED), (3, SAVED + 1, STEPS)]
    ),
    "reference-moved-2d": functools.partial(
        referred,
        "reference-moved-2d",
        "parallel",
        4,
        [(4, 1, SAVED), (4, SAVED + 1, STEPS)],
    ),
    "built-arrival": arrived,
    "built-often": many,
    "built-example": shown,
    **{f"built-{each}": functools.partial(mistakes, each) for each in MISTAKES},
    "reference-sharded": functools.partial(
        referred, "reference-sharded", "sharded", 3, THREE_TO_TWO
    ),
    "reference-hybrid": functools.partial(referred, "reference-hybrid", "hybrid", 4, FOUR_TO_THREE),
    "reference-parallel": functools.partial(
        referred, "reference-parallel", "parallel", 4, FOUR_TO_THREE
    ),
    "reference-arrival": functools.partial(
        referred, "reference-arrival", "sharded", 3, TWO_TO_THREE, samples=True
    ),
}
