"""Torch's private names stand in one module, and nothing that saves needs one of them."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.scripts.without_torch_names import attributes
from torch.testing._internal.distributed.fake_pg import FakeStore

from spotelastic import torch_names
from spotelastic.torch_names import NAMES, found_in_torch

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "spotelastic", ROOT / "checkpoints/spotelastic_checkpoints")
MODULE = ROOT / "spotelastic/torch_names.py"
TEXTS = {
    file: text
    for package in PACKAGES
    for file in package.rglob("*.py")
    if "torch" in (text := file.read_text())
}
TREES = {file: [*ast.walk(ast.parse(text))] for file, text in TEXTS.items()}
"""The files of the product that speak of torch."""
ANYWHERE = {
    "_parameters": "of each module: widely used, and as old as torch",
    "_buffers": "the same",
    "_modules": "the same",
    "_forward_hooks": "the same",
    "_forward_pre_hooks": "the same",
    "_replace": "of named tuples",
}
EXCEPTIONS = {
    "training/state/values.py core.multiarray._reconstruct": "numpy's: part of a format",
    "format/encoding.py torch._utils": "text in each file that torch.load reads",
    "format/metadata.py _StorageInfo": "the same",
    "training/dcp/reader.py torch.distributed._shard.sharded_tensor.metadata": "the same",
    "training/dcp/reader.py _StorageInfo": "the same",
    "agent/node_processes.py torch._dynamo": "imported before it is needed, if it is there",
}
"""Places, and what stands there."""
OF_NCCL = "torch._C._distributed_c10d:_dump_nccl_trace"
OTHERS = "spotelastic/integrations/"
"""Libraries that they integrate have private names of their own."""


def is_private(text: str) -> bool:
    return any(re.match(r"_(?!_)\w", part) for part in text.split("."))


def used(file: Path) -> Iterator[str]:
    """What a file uses of torch that is private, or of anything that is not its own."""
    modules: set[str] = set()
    of_torch: set[str] = set()
    for node in TREES[file]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = getattr(node, "module", None) or ""
            for each in node.names:
                name = f"{origin}.{each.name}".strip(".")
                is_of_torch = name.split(".")[0] == "torch"
                (of_torch if is_of_torch else modules).add(each.asname or each.name.split(".")[0])
                if is_of_torch and is_private(name):
                    yield origin if is_private(origin) else name
    for node in TREES[file]:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute | ast.Call | ast.Subscript):
                root = root.func if isinstance(root, ast.Call) else root.value
            base = root.id if isinstance(root, ast.Name) else ""
            of_another = base in modules or node.attr in OWN or not of_torch
            if base in of_torch or not of_another:
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text in LOOKED_FOR or (re.fullmatch(r"torch(\.\w+)+", text) and is_private(text)):
                yield text


def own_names() -> set[str]:
    """The private names that the product itself defines."""
    found = set()
    for tree in TREES.values():
        for node in tree:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                    found.add(node.attr)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


OWN = own_names() - {"_version", "_hash"}
LOOKED_FOR = {each.name.rpartition(":")[2].split(".")[-1] for each in NAMES} | attributes()
LOOKED_FOR -= {""}


def test_no_other_file_names_what_is_private_in_torch() -> None:
    found = {
        f"{'/'.join(file.parts[-3:])} {what}".removeprefix("spotelastic/").removeprefix(
            "spotelastic_checkpoints/"
        )
        for file in TREES
        if file != MODULE
        for what in used(file)
        if what.rpartition(".")[2] not in ANYWHERE
        and not (OTHERS in str(file) and not what.startswith(("torch.", "dist.")))
    }
    assert found == set(EXCEPTIONS), "use spotelastic/torch_names.py"
    assert list(used(MODULE)), "this test sees nothing"


@pytest.mark.parametrize("name", NAMES, ids=lambda each: each.name)
def test_torch_has_what_its_version_is_said_to_have(name: torch_names.TorchName) -> None:
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if name.name == OF_NCCL and not dist.is_nccl_available():
        pytest.skip("a torch for the CPU alone has no NCCL")
    if version < tuple(map(int, name.since.split("."))):
        pytest.skip(f"torch has it since {name.since}")
    assert found_in_torch(name.name) is not None, "see what it was renamed to, and its docstring"


@pytest.mark.parametrize("name", ["torch:_nothing", "torch:Tensor._nothing.at_all", "torch._no:no"])
def test_what_torch_does_not_have_is_no_error(name: str) -> None:
    assert found_in_torch(name) is None


def test_torch_gives_single_objects_the_attributes_that_are_looked_for() -> None:
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        model = torch.nn.Linear(2, 2)
        ddp = torch.nn.parallel.DistributedDataParallel(model, static_graph=True)
        assert not torch_names.wrapper_problem(ddp)
    finally:
        dist.destroy_process_group()
    for name in ("_has_rebuilt_buckets", "_static_graph_delay_allreduce_enqueued"):
        assert hasattr(ddp, name)
    optimizer = torch.optim.AdamW(model.parameters())
    assert all(hasattr(optimizer, name) for name in torch_names.STEP_HOOKS)
    assert all(hasattr(optimizer, name) for name in torch_names.STATE_HOOKS)
    assert hasattr(model, "_non_persistent_buffers_set")
    assert hasattr(torch.nn.Module, "_compiled_call_impl")
    assert hasattr(found_in_torch("torch.distributed.tensor:_random"), "_rng_tracker")
    numbers: Any = [1, 2]
    loader = iter(torch.utils.data.DataLoader(numbers))
    next(loader)
    assert torch_names.batches_handed_out(loader) == 1
    assert any(kind.__name__ == torch_names.LOADER_ITERATOR for kind in type(loader).__mro__)
    assert all(hasattr(dist.ProcessGroup, name) for name in torch_names.GROUP_COLLECTIVES)
    assert not torch_names.problem() and not torch_names.mesh_problem()


def test_saving_and_loading_need_none_and_workers_say_why_they_do_not_rest(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "support.scripts.without_torch_names", tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["saved"]
    rests = told["rests"]
    assert re.match(r"torch \S+ has no torch\.distributed\.\S+: use a version", rests["groups"])
    assert "has no torch.nn.parallel.DistributedDataParallel._comm_hooks" in rests["wrapper"]
    assert rests["left"] and not rests["watched"]
    wanted = {each.name for each in NAMES if each.rests}
    assert wanted and {each.name for each in NAMES} < told["each"].keys()
    for name, (is_same, problem) in told["each"].items():
        assert is_same, name
        assert (name.replace(":", ".") in problem) if name in wanted else not problem
