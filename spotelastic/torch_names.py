"""Torch's private names. Nothing else in spotelastic uses one.

Torch may rename them in any version. So each function here says which of them it stands for, which
versions of torch have those, and what it does without them. `NAMES` lists them all, and a test
compares it with the torch that is installed.

Must never happen: saving or loading fails for want of one of them. They are looked up when they are
used, and not when this is imported. What goes on in one process after ranks were lost does need
some: without them `problem` says so, and new processes are started instead.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from spotelastic.errors import EnvironmentFailure

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

P = ParamSpec("P")
T = TypeVar("T")


class TorchName(NamedTuple):
    """A private name: the module of torch, a colon, and what leads to it from there.

    `since` is the first version that has it, of those that were looked at: torch 2.8, 2.13, 2.14
    and 2.15. Workers can rest only where torch has those of `rests`.
    """

    name: str
    since: str
    rests: bool


NAMES: list[TorchName] = []
"""All that are used here, but for attributes that torch gives to single objects."""

WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
}
"""Classes of modules that torch leaves out of names in checkpoints, and where they have the module
within. They are parts of names in checkpoints, too. The classes are known by name: importing some
of them takes most of a second. Without these, such modules are saved under longer names.
"""
LOADER_ITERATOR = "_BaseDataLoaderIter"
"""Base class of the iterators of torch's and torchdata's loaders. Without it, the batches that a
loader has read ahead are not told from those that the script has taken.
"""
GROUP_COLLECTIVES = ("_allgather_base", "_reduce_scatter_base")
"""Methods of process groups. Without them, a rehearsal does not see these collectives."""
OF_DDP = ("_comm_hooks", "_delay_all_reduce_params", "_has_rebuilt_buckets", "_join_config")
"""Attributes of each `DistributedDataParallel`. Without them, workers cannot rest."""
STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Attributes of each optimizer: hooks around a step. Without them, the script's own see a step that
is made to create state.
"""
STATE_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
"""Attributes of each optimizer: hooks around its state. Without them, it is saved as if it had no
such hooks.
"""


def _stands_for(
    *names: str, since: str = "2.8", rests: bool = False, needed: bool = False
) -> Callable[[Callable[Concatenate[Any, P], T]], Callable[P, T]]:
    """Have a function be called with what torch has under a name, or a list of that for several.

    That is None where torch has nothing; if it is `needed`, `EnvironmentFailure` is raised.
    """
    NAMES.extend(TorchName(name, since, rests) for name in names)

    def given(function: Callable[Concatenate[Any, P], T]) -> Callable[P, T]:
        @functools.wraps(function)
        def called(*args: P.args, **more: P.kwargs) -> T:
            found = [*map(found_in_torch, names)]
            if needed and (missing := _missing(names)):
                raise EnvironmentFailure(missing)
            return function(found if len(names) > 1 else found[0], *args, **more)

        return called

    return given


def found_in_torch(name: str) -> Any:
    """Return what the torch that is installed has under a name; None if it has nothing."""
    module, _, path = name.partition(":")
    way = path.split(".") if path else ()
    try:
        return functools.reduce(getattr, way, importlib.import_module(module))
    except (ImportError, AttributeError):
        return None


def problem() -> str:
    """Return which name is missing without which workers cannot rest; empty if none is."""
    return _missing([each.name for each in NAMES if each.rests])


def _missing(names: Iterable[str]) -> str:
    return next((_untried(name) for name in names if found_in_torch(name) is None), "")


def _untried(name: str) -> str:
    version, name = importlib.import_module("torch").__version__, name.replace(":", ".")
    return f"torch {version} has no {name}: use a version that spotelastic was tested with"


# -- process groups ---------------------------------------------------------------------------


@_stands_for("torch.distributed.distributed_c10d:_world.pg_map", rests=True)
def groups_of_process(known: Mapping[Any, Any] | None) -> list[Any]:
    """Return all process groups of this process; without `_world`, none."""
    return [*(known or ())]


@_stands_for("torch.distributed.distributed_c10d:_world.group_count", rests=True)
def set_group_count(known: int | None, count: int) -> None:
    """Set the number after which torch names the next group; without it, do nothing."""
    if known is not None:
        found_in_torch("torch.distributed.distributed_c10d:_world").group_count = count


@_stands_for("torch.distributed.distributed_c10d:_abort_process_group")
def abort_groups(abort: Callable[[], None] | None) -> None:
    """Abort all groups. Without it, they stay as they are."""
    if abort is not None:
        abort()


@_stands_for("torch.distributed.distributed_c10d:_new_process_group_helper", rests=True)
def wrap_making_of_groups(make: Any, wrap: Callable[[Callable[..., Any]], Any]) -> bool:
    """Have torch make each process group by `wrap(make)` from now on.

    Return whether it does; without that function it does not.
    """
    if make is not None:
        module: Any = importlib.import_module("torch.distributed.distributed_c10d")
        module._new_process_group_helper = wrap(make)
    return make is not None


@_stands_for("torch.distributed.distributed_c10d:_get_default_store")
def store_of_all(get: Any) -> Any:
    """Return the store of the default group, to which all ranks can write.

    Newer versions of torch tell it by a public method; without that, this is needed.
    """
    from torch.distributed import group

    return getattr(group.WORLD, "get_group_store", get)()


@_stands_for("torch.distributed:ProcessGroup._get_backend", rests=True)
def nccl_backend_of(get: Callable[..., Any] | None, group: Any) -> Any:
    """Return NCCL's backend of a group; None where it has no such, or without the function."""
    import torch

    with contextlib.suppress(RuntimeError):
        backend = get and get(group, torch.device("cuda"))
        return backend if backend and backend.name() == "nccl" else None


def is_rank_hook(hook: Callable[..., Any]) -> bool:
    """Return whether this is the `sys.excepthook` that torch sets in `init_process_group`.

    It puts a rank before what it prints. Where torch calls it otherwise, that is the first round's.
    """
    return getattr(hook, "__name__", "") == "_distributed_excepthook"


@_stands_for(
    "torch._C._distributed_c10d:_dump_fr_trace", "torch._C._distributed_c10d:_dump_nccl_trace"
)
def flight_recorder(dumps: list[Any], *, of_nccl: bool) -> Callable[..., bytes] | None:
    """Return what dumps the record of collectives on the CPU, or of those of NCCL.

    None where torch has none, as of NCCL in a torch for the CPU alone.
    """
    found: Callable[..., bytes] | None = dumps[of_nccl]
    return found


@_stands_for("torch._dynamo.variables.torch:constant_fold_functions_need_guards")
def compile_no_results_of(known: dict[Any, Any] | None, *functions: Callable[..., Any]) -> None:
    """Have compiled code look at what these functions return each time.

    Without the list, code that has taken a number of ranks for a constant keeps it.
    """
    if known is not None:
        known.update(dict.fromkeys(functions))


# -- what is bound to ranks -------------------------------------------------------------------


@_stands_for("torch.distributed:Reducer._remove_autograd_hooks", rests=True, needed=True)
def remake_reducer(remove_hooks: Callable[[Any], None], ddp: Any) -> None:
    """Have a `DistributedDataParallel` reduce gradients in the default group, without hooks.

    Call it only where `problem` and `wrapper_problem` say nothing.
    """
    from torch.nn.parallel import DistributedDataParallel

    remove_hooks(ddp.reducer)
    # This makes what a wrapper lacks that was unpickled.
    DistributedDataParallel.__setstate__(ddp, {})  # type: ignore[no-untyped-call]
    ddp._comm_hooks, ddp._has_rebuilt_buckets = [], False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False


def hooks_of(ddp: Any) -> list[tuple[Any, Any]]:
    """Return the communication hooks of a `DistributedDataParallel`, each with its state."""
    return [*getattr(ddp, "_comm_hooks", ())]


def wrapper_problem(ddp: Any) -> str:
    """Return why a `DistributedDataParallel` cannot be given other ranks; empty if it can."""
    if missing := next((name for name in OF_DDP if not hasattr(ddp, name)), ""):
        return _untried(f"torch.nn.parallel.DistributedDataParallel.{missing}")
    if ddp._delay_all_reduce_params or getattr(ddp, "_use_python_reducer", False):
        return (
            "a DistributedDataParallel without torch's own reducer cannot be given other ranks: "
            "leave out delay_all_reduce_named_params and torch._dynamo.config.optimize_ddp"
        )
    if ddp._join_config.enable:
        return (
            "a join() context waits for the ranks that there are when it begins: use "
            "se.ElasticSampler, which gives all ranks as many batches"
        )
    if any(hasattr(each, "_in_backward_optimizers") for each in ddp.module.parameters()):
        return "an optimizer steps during backward: let it step after it"
    return ""


def mesh_problem() -> str:
    """Return why meshes of different rounds cannot be told apart; empty if they can.

    That takes `_thread_id`, which torch compares.
    """
    from torch.distributed.device_mesh import DeviceMesh

    compared = DeviceMesh.__eq__.__code__.co_names
    return "" if "_thread_id" in compared else _untried("DeviceMesh._thread_id that is compared")


def set_mesh_apart(mesh: Any, number: int) -> None:
    """Have a mesh that belongs to no thread be unequal to those with another number."""
    if getattr(mesh, "_thread_id", None) is None:
        mesh._thread_id, mesh._hash = number, None


@_stands_for(
    "torch.distributed.tensor.debug:_clear_sharding_prop_cache",
    "torch.distributed.tensor._redistribute:clear_redistribute_planner_cache",
    since="2.13",
)
def forget_meshes(clears: list[Any]) -> None:
    """Empty torch's caches by mesh. Without these functions, meshes are told apart all the same."""
    for clear in filter(None, clears):
        clear()


@_stands_for("torch.distributed.tensor:_random")
def forget_random_numbers(module: Any) -> None:
    """Have ranks agree anew on random numbers of sharded tensors, which `_rng_tracker` makes.

    Without the module, those that were there and those that come have other random numbers.
    """
    if module is not None:
        module._rng_tracker = None


@_stands_for("torch.distributed.fsdp:FSDPModule._get_fsdp_state")
def fsdp_state_of(get: Callable[[Any], Any] | None, module: Any) -> Any:
    """Return what FSDP2 keeps for a module; None where it keeps nothing, or without the method.

    Then its memory is free only when the script holds the module no more.
    """
    from torch.distributed.fsdp import FSDPModule

    return get(module) if get is not None and isinstance(module, FSDPModule) else None


def import_compiler() -> None:
    """Import what torch imports when something is compiled for the first time: some 600 modules.

    Where that is called otherwise, it happens when something is compiled.
    """
    importlib.import_module("torch._inductor.compile_fx")


# -- tensors, modules, optimizers and loaders -------------------------------------------------


@_stands_for("torch:_foreach_add_")
def add_all(add: Any, to: Sequence["Tensor"], those: Sequence["Tensor"]) -> None:
    """Add tensors to others in place, all in one call; without it, one by one."""
    if add is not None:
        if to:
            add(to, those)
        return
    for one, other in zip(to, those, strict=True):
        one.add_(other)


@_stands_for("torch.nn.utils.clip_grad:_get_total_norm")
def note_clipped_norms(norm: Any, noted: Callable[[Any], None]) -> Callable[[], None]:
    """Have each norm be noted by which `clip_grad_norm_` clips, until what is returned is called.

    Without the function, none is.
    """
    module: Any = importlib.import_module("torch.nn.utils.clip_grad")

    @functools.wraps(norm or noted)
    def noting(*args: Any, **more: Any) -> Any:
        found = norm(*args, **more)
        noted(found)
        return found

    def stop() -> None:
        if getattr(module, "_get_total_norm", None) is noting:
            module._get_total_norm = norm

    if norm is not None:
        module._get_total_norm = noting
    return stop


@_stands_for("torch:_foreach_copy_")
def copy_all(
    copy: Any, targets: Sequence["Tensor"], sources: Sequence["Tensor"], non_blocking: bool = False
) -> None:
    """Copy each source into its target, all in one call; without it, one by one."""
    if copy is not None:
        copy(targets, sources, non_blocking=non_blocking)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=non_blocking)


@_stands_for("torch:Tensor._version")
def write_counts(counter: Any, tensors: Iterable["Tensor"]) -> list[int]:
    """Return how often torch has seen each tensor written to; -1 where it does not count.

    Without it, -1 for all: samples alone tell then that something was written.
    """
    known = counter is not None
    return [counter.__get__(t) if known and not t.is_inference() else -1 for t in tensors]


@_stands_for("torch:Tensor._is_zerotensor")
def is_zero_tensor(look: Any, tensor: "Tensor") -> bool:
    """Return whether it stands for zeros in autograd, without memory; without the method, False."""
    return bool(look and look(tensor))


def unsaved_buffers(module: "Module") -> frozenset[str]:
    """Return the names of a module's own buffers that are not saved: `persistent=False`.

    They are in `_non_persistent_buffers_set`. Without it, the module's `state_dict()` tells.
    """
    found = getattr(module, "_non_persistent_buffers_set", None)
    return frozenset(module._buffers.keys() - module.state_dict() if found is None else found)


def call_uncompiled(module: Any) -> None:
    """Have a module on which `compile()` was called run as it is written.

    That is `_compiled_call_impl`. Without it, hooks that are added later may not be called.
    """
    module._compiled_call_impl = None


def batches_handed_out(iterator: object) -> int:
    """Return how many batches a loader's iterator has given to the script: `_num_yielded`.

    Without it, 0: samples that the loader has read ahead are not told from those in use.
    """
    return int(getattr(iterator, "_num_yielded", 0))


# -- checkpoints of torch.distributed.checkpoint ----------------------------------------------


@_stands_for("torch.distributed.checkpoint.filesystem:_StorageInfo", needed=True)
def storage_info(found: type[Any]) -> type[Any]:
    """Return the class of what a record says of each item: its file, offset and length.

    Raises `EnvironmentFailure` without it: torch has another format then.
    """
    return found


@_stands_for(
    "torch.distributed._state_dict_utils:_copy_state_dict",
    "torch.distributed._state_dict_utils:_create_cpu_state_dict",
    "torch.distributed._state_dict_utils:_check_state_dict_similarity",
    needed=True,
)
def copied_to_memory(used: Any, state: Any, former: Any, *, pinned: bool) -> tuple[Any, Any]:
    """Copy a state to the CPU, into the memory of a former copy if that is alike.

    Return the copy, and what can be given as `former` next time. Raises `EnvironmentFailure`
    without these functions.
    """
    copy, create, are_alike = used
    if former is None or not are_alike(state, former):
        former = create(state, pin_memory=pinned)
    return copy(state, former), former


# -- processes --------------------------------------------------------------------------------


@_stands_for("torch._logging._internal:_init_logs")
def apply_log_settings(apply: Callable[[], None] | None) -> None:
    """Apply TORCH_LOGS as it is now; without it, torch heeds what it was at its import."""
    if apply is not None:
        apply()


@_stands_for(
    "torch.numa.binding:_maybe_apply_numa_binding_to_current_process", since="2.13", needed=True
)
def bind_to_cores_of(bind: Callable[..., None], gpu: int, mode: str) -> None:
    """Bind this process to the cores near a GPU, in one of torch's modes.

    Raises `EnvironmentFailure` without it.
    """
    from torch.numa.binding import AffinityMode, NumaOptions

    bind(gpu_index=gpu, numa_options=NumaOptions(affinity_mode=AffinityMode(mode)))
