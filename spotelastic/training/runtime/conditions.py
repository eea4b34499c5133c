"""What besides the order of sums decides the last bits of a run: for `--exact`.

It is set when a Checkpointer is made, and compared between all ranks when a round is entered, and
with what a run was begun with when that is restored.
"""

import os
from collections.abc import Iterable, Mapping

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from spotelastic import linux
from spotelastic.errors import UsageError
from spotelastic.model.in_place import CUBLAS, EXACT
from spotelastic.training.data.sampler import ElasticSampler
from spotelastic.training.runtime.session import Ranks

Conditions = dict[str, str]
"""What decides the last bits, by names for people."""
KERNELS = "the kernels that compute are not the same, nor are the last bits"


WITHOUT = (
    "--exact: no sampler of the state has virtual ranks, so other nodes come to other bits: put an "
    "ElasticSampler(..., virtual_ranks=N) into the state of the Checkpointer, or leave --exact out"
)
_expected: list[RemovableHandle] = []


def expect_checkpointer() -> None:
    """Have the first step of any optimizer refused, until a Checkpointer is made."""
    _expected.append(register_optimizer_step_pre_hook(_refuse))


def begin(said: bool | None, entries: Iterable[object]) -> bool:
    """Set what decides the last bits, if that is wanted, and return whether it is.

    A Checkpointer is made, so that optimizers wait for one no more.
    """
    while _expected:
        _expected.pop().remove()
    if wanted := is_exact(said):
        impose(entries)
    return wanted


def _refuse(*_: object) -> None:
    raise UsageError(WITHOUT)


def is_exact(said: bool | None) -> bool:
    """Return whether bits are to be the same: what the script says, or else the job."""
    return os.environ.get(EXACT) == "1" if said is None else said


def has_virtual_ranks(entries: Iterable[object]) -> bool:
    """Return whether one of the entries of a state is a sampler with virtual ranks."""
    return any(
        isinstance(each, ElasticSampler) and each.virtual_ranks is not None for each in entries
    )


def impose(entries: Iterable[object]) -> None:
    """Set what can be set.

    Raises `UsageError` for a state without virtual ranks, whose sums are added up in another order
    on other nodes.
    """
    if not has_virtual_ranks(entries):
        raise UsageError(WITHOUT)
    os.environ.setdefault(*CUBLAS)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if "OMP_NUM_THREADS" not in os.environ:  # else as many as this node happens to have cores
        torch.set_num_threads(1)


def found() -> Conditions:
    """Return what there is on this rank."""
    strict = torch.are_deterministic_algorithms_enabled()
    strict &= not torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return {
        "torch": f"{torch.__version__} ({str(torch.version.git_version)[:10]})",
        "CUDA": str(torch.version.cuda or torch.version.hip or "none"),
        "cuDNN": str(cudnn.version() or "none"),  # type: ignore[no-untyped-call]
        "GPU": linux.gpu_models(),
        "CPU kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "MKL and oneDNN": f"{mkl}, {torch.backends.mkldnn.enabled}",
        "deterministic algorithms": str(strict),
        "cuDNN's choice of algorithms": f"{cudnn.benchmark}, {cudnn.deterministic}",
        CUBLAS[0]: os.environ.get(CUBLAS[0], "none"),
        "precision of products": _precision(),
    }


def _precision() -> str:
    """Return how products and convolutions round.

    Asked by its older name, torch refuses to tell where a script has set it by the newer ones,
    which torch 2.8 does not have.
    """
    parts = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)
    found = [getattr(each, "fp32_precision", "") for each in parts]
    return ", ".join(found) if all(found) else torch.get_float32_matmul_precision()


def agree(ranks: Ranks) -> Conditions:
    """Return what all ranks have.

    Raises `UsageError` on all of them where one differs from the first, with the name of its node.
    All ranks call it.
    """
    (first, its), *others = ranks.gather((ranks.node, found()))
    for rank, (node, theirs) in enumerate(others, 1):
        if name := _different(its, theirs):
            raise UsageError(
                f"--exact: rank {rank} on {node} has {name} {theirs.get(name)}, and rank 0 on "
                f"{first} {its[name]}: {KERNELS}"
            )
    return its


def refuse_others(begun_with: Mapping[str, str] | None, now: Mapping[str, str]) -> None:
    """Raise `UsageError` where a run is restored that was begun with something else.

    None: it was begun without `--exact`.
    """
    if begun_with is not None and (name := _different(begun_with, now)):
        raise UsageError(
            f"--exact: the run was begun with {name} {begun_with[name]}, and this node has "
            f"{now.get(name)}: {KERNELS}. Begin it afresh, or leave --exact out"
        )


def told(its: Conditions) -> str:
    """Return in a line what was set, and what else all ranks have."""
    have = ", ".join(f"{name} {value}" for name, value in its.items() if value != "none")
    return (
        "exact: set are deterministic algorithms, cuDNN's without a choice by measurement, and "
        f"{CUBLAS[0]}. All ranks have {have}"
    )


def _different(its: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return the first name whose values differ; empty if none does.

    What one of them does not know is of another version.
    """
    return next((each for each in its if theirs.get(each, its[each]) != its[each]), "")
