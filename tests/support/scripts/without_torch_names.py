"""Trains, saves and restores where torch lacks all its private names, and then each of them.

    python -m support.scripts.without_torch_names FOLDER

Prints one JSON object: whether what was restored is what was trained on, and what workers that
should rest say.
"""

import ast
import builtins
import inspect
import json
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from support.saving import one_slot
from support.training.small_model import make, one_step, weights

import spotelastic as se
from spotelastic import torch_names
from spotelastic.training.in_place import building, groups, nccl, watching
from spotelastic.training.save.overlap import OverlapSizes
from spotelastic.training.state.state import State

_here = torch_names.found_in_torch


def attributes() -> frozenset[str]:
    """The names in that module which are looked for in single objects."""
    tree = ast.parse(inspect.getsource(torch_names))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return frozenset(
        text for text in texts if isinstance(text, str) and re.match(r"_[a-z]\w*$", text)
    )


def lacking(names: Collection[str]) -> None:
    """Have torch lack these names from now on."""
    lost = {name for name in names if ":" not in name}

    def found(name: str) -> Any:
        return None if name in names else _here(name)

    def get(value: Any, name: str, *default: Any) -> Any:
        if name not in lost:
            return builtins.getattr(value, name, *default)
        if default:
            return default[0]
        raise AttributeError(name)

    hidden: Any = torch_names
    hidden.found_in_torch = found
    hidden.getattr, hidden.hasattr = get, lambda value, name: get(value, name, None) is not None


def same_after(folder: Path) -> bool:
    """Whether a run that goes on from a checkpoint has what the one before had."""
    before, after = make(1), make(2)
    with se.Checkpointer(before, storage=str(folder)) as checkpoint:
        checkpoint.restore()
        for step in range(1, 4):
            checkpoint.step(step, loss=one_step(before))
    with se.Checkpointer(after, storage=str(folder)) as checkpoint:
        restored = checkpoint.restore()
    return restored == 3 and _are_same(before, after)


def same_in_slot(file: Path) -> bool:
    """The same without a daemon, with the copy made beside training, too."""
    state, filled, streamed = make(1), make(2), make(3)
    one_step(state)
    slot = one_slot.OneSlot(file, state, sizes=OverlapSizes(block=64, least=1))
    slot.save(1, overlaps=True)
    one_slot.load(file, 1, filled)
    one_slot.stream(file, 1, streamed)
    return _are_same(state, filled) and _are_same(state, streamed)


def _are_same(one: Any, other: Any) -> bool:
    left, right = ((*s["optimizer"].state.values(),) for s in (one, other))
    moments = zip(left, right, strict=True)
    return torch.equal(weights(one), weights(other)) and all(
        torch.equal(mine[name], theirs[name]) for mine, theirs in moments for name in mine
    )


def rests() -> dict[str, Any]:
    """What a worker says that should rest, where torch lacks all names."""
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    watching.watch()
    wrapper = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    told = {
        "groups": groups.groups.problem(None),
        "wrapper": torch_names.wrapper_problem(wrapper),
        "watched": len(nccl.backends()) + groups.groups.others(None),
    }
    building.Builder(dict, State({}), groups.groups).let_go()
    groups.groups.leave()
    return told | {"left": not torch.distributed.is_initialized()}


def main() -> None:
    folder = Path(sys.argv[1])
    names = {each.name for each in torch_names.NAMES}
    lacking(names | attributes())
    told = {"saved": same_after(folder / "store"), "rests": rests()}
    each: dict[str, list[object]] = {}
    for name in sorted(names | attributes()):
        lacking({name})
        each[name] = [same_in_slot(folder / "slot"), torch_names.problem()]
    print(json.dumps(told | {"each": each}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
