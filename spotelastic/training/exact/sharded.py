"""Sums the gradients of FSDP2's modules over virtual ranks, as they are scattered.

All ranks compute a virtual rank at the same time, and these are neighbours: rank r has every n-th
one, from r. What they have computed is exchanged in each backward pass, as FSDP does without
`set_requires_gradient_sync(False)`. The owner of a shard is sent that shard of each rank's
gradient, and adds them up as the tree says. It holds a few sums of its shard, never all gradients.

Must never happen: the sum of another number of virtual ranks, or a norm that depends on how
parameters are sharded, reaches an optimizer.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from spotelastic import torch_names
from spotelastic.errors import UsageError
from spotelastic.training.data.sum_tree import SumTree

ELEMENTWISE = (
    *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)
"""Optimizers of torch that change each element by itself, whatever shard it is in."""
SAMPLES, LOOKED_AT = 8, 25
"""Elements of a gradient, and first steps and every so many later ones, that are looked at."""


class _Sum:
    """The gradients of one module. It is that module's reduce-scatter."""

    def __init__(self) -> None:
        self._tree = SumTree[Tensor](torch.add)
        self._leaves = range(0)
        self._is_last = False
        self.is_there = False
        """Whether the gradients of the present pass have come."""

    def begin_pass(self, leaves: range, is_last: bool) -> None:
        """Wait for what the ranks have of these virtual ranks, one of each."""
        if leaves.start == 0:
            self._tree = SumTree(torch.add)
        self._leaves, self._is_last, self.is_there = leaves, is_last, False

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for what is scattered."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Exchange shards in a backward pass."""
        incoming = torch.empty_like(input_tensor)
        dist.all_to_all_single(incoming, input_tensor, group=group)
        self._take(incoming.view(group.size(), -1), output_tensor)

    def alone(self, gradients: Tensor) -> None:
        """Take what the only rank has, which is exchanged with nobody."""
        self._take(gradients.view(1, -1), gradients)

    def _take(self, incoming: Tensor, output: Tensor) -> None:
        if self.is_there or not self._leaves:
            raise UsageError(
                "virtual_ranks: there was another backward pass of a sharded module in one turn of "
                "`for micro in sampler.microbatches()`, or outside of it: wrap what is called "
                "once for each piece by fully_shard, and add up the losses of a piece"
            )
        self.is_there = True
        for leaf, values in zip(self._leaves, incoming, strict=False):
            # Only the last one may be left as it is. A copy of it holds no other shard's memory.
            self._tree.put(leaf, values.clone() if leaf == self._leaves[-1] else values)
        if self._is_last:
            output.copy_(self._tree.total())
        else:
            output.zero_()


class ShardedSums:
    """The gradients of all sharded parameters."""

    def __init__(
        self,
        modules: Iterable[torch.nn.Module],
        optimizers: Iterable[torch.optim.Optimizer],
        parameters: Sequence[Tensor],
    ) -> None:
        self.parameters = [each for each in parameters if isinstance(each, DTensor)]
        self._before: list[Tensor | None] = []
        self._noted: list[Tensor] | None = None
        """Some elements of the gradients, where they are compared before the optimizer steps."""
        self._steps = 0
        self._ranks = dist.get_world_size() if dist.is_initialized() else 1
        for parameter in self.parameters:
            if parameter.device_mesh.size() != self._ranks or parameter.placements != (Shard(0),):
                raise UsageError(
                    f"virtual_ranks: a parameter is sharded as {parameter.placements} over "
                    f"{tuple(parameter.device_mesh.shape)} ranks: only fully_shard over all ranks "
                    "of the job, by the first dimension, has sums in a fixed order"
                )
        for each in optimizers:
            if type(each) not in [getattr(torch.optim, name) for name in ELEMENTWISE]:
                raise UsageError(
                    f"virtual_ranks: what {type(each).__name__} does with a shard may depend on "
                    f"the number of ranks: use one of {', '.join(ELEMENTWISE)}, of torch.optim"
                )
            each.register_step_pre_hook(self._refuse_changed)
        parts = [part for module in modules for part in module.modules()]
        wrapped: list[Any] = [part for part in parts if isinstance(part, FSDPModule)]
        scattered = {id(each) for part in wrapped for each in part.parameters()}
        if any(id(each) not in scattered for each in self.parameters):
            raise UsageError(
                "virtual_ranks: a parameter is sharded, and not by fully_shard: its gradient has "
                "no sum in a fixed order"
            )
        # Modules that were given to fully_shard together are one.
        units = {id(torch_names.fsdp_state_of(part) or part): part for part in wrapped}
        self._sums = [self._set(unit) for unit in units.values()]

    def _set(self, module: FSDPModule) -> _Sum:
        found = _Sum()
        custom: Any = found  # torch asks for no more than what it calls
        try:
            module.set_custom_reduce_scatter(custom)
            if self._ranks == 1:
                module.set_all_reduce_hook(found.alone)
        except ValueError as error:
            raise UsageError(f"virtual_ranks: {error}") from error
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if (with_unused := getattr(module, "set_reduce_scatter_unused_params", None)) is not None:
            with_unused(True, recurse=False)
        return found

    def begin(self) -> None:
        """Begin a step. Gradients that there are already are added in the end."""
        self._before = self._take()

    def begin_pass(self, leaves: range, is_last: bool) -> None:
        """Begin a forward and a backward pass over these virtual ranks, one on each rank."""
        for each in self._sums:
            each.begin_pass(leaves, is_last)

    def end_pass(self, is_last: bool) -> None:
        """See that all gradients have come. Raises `UsageError` where some have not."""
        if not all(each.is_there for each in self._sums):
            raise UsageError(
                "virtual_ranks: a sharded module has exchanged no gradients in the backward pass "
                "of a piece: leave set_requires_gradient_sync(False) out, and have each piece use "
                "all modules that fully_shard has wrapped"
            )
        if not is_last:
            self._take()

    def finish(self) -> None:
        """Set all gradients to their sums."""
        for each in self._sums:
            each.begin_pass(range(0), False)
        for parameter, before in zip(self.parameters, self._before, strict=True):
            if before is not None:
                now = parameter.grad
                parameter.grad = before if now is None else before.add_(now)
        self._steps += 1
        self._noted = None
        if self._steps <= LOOKED_AT or self._steps % LOOKED_AT == 0:
            self._noted = self._samples()

    def note_clipped(self) -> None:
        """Note that gradients were scaled, by a norm that depends on no shard."""
        if self._noted is not None:
            self._noted = self._samples()

    def _refuse_changed(self, *_: Any) -> None:
        """Raise `UsageError` where gradients have been changed by what may depend on shards.

        Torch does not count what is written to a DTensor, so that a few elements tell. To compare
        them waits for a GPU. So this looks at a round's first steps and at few of the others.
        """
        noted, self._noted = self._noted, None
        if noted is not None and not all(map(torch.equal, noted, self._samples())):
            raise UsageError(
                "virtual_ranks: the gradients of a sharded model were changed before the step. "
                "Norms of shards depend on the number of ranks: use "
                "sampler.clip_grad_norm_(parameters, max_norm), and no scaler"
            )

    @torch.no_grad()
    def _samples(self) -> list[Tensor]:
        there = (_local(each.grad).reshape(-1) for each in self.parameters if each.grad is not None)
        return [each[:: each.numel() // SAMPLES + 1].clone() for each in there]

    def _take(self) -> list[Tensor | None]:
        found = [each.grad for each in self.parameters]
        for each in self.parameters:
            each.grad = None
        return found


@torch.no_grad()
def norm_of(gradients: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of gradients, the same on all ranks for any number of ranks.

    Each row is summed where it lies. All ranks then have the sums of all rows, and add them up.
    """
    rows = [sums_of_rows(_local(each)) for each in gradients]
    whole: list[Tensor] = []
    sharded = [number for number, each in enumerate(gradients) if isinstance(each, DTensor)]
    if sharded and dist.is_initialized() and (ranks := dist.get_world_size()) > 1:
        longest = [-(-gradients[number].shape[0] // ranks) for number in sharded]
        own = torch.cat(
            [
                torch.nn.functional.pad(rows[number], (0, length - len(rows[number])))
                for number, length in zip(sharded, longest, strict=True)
            ]
        )
        every = own.new_empty(ranks * len(own))
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(every, own)
        columns = torch.split(every.view(ranks, -1), longest, dim=1)
        for number, found in zip(sharded, columns, strict=True):
            rows[number] = found.reshape(-1)[: gradients[number].shape[0]]
    whole = [_halved(each.view(1, -1)) for each in rows]
    return _halved(torch.cat(whole).view(1, -1)).sqrt().reshape(())


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
    """Scale gradients so that their 2-norm is at most `max_norm`. Returns the norm before."""
    given = [parameters] if isinstance(parameters, Tensor) else [*parameters]
    gradients = [each.grad for each in given if each.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = norm_of(gradients)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for each in gradients:
        local = _local(each)
        local.mul_(factor.to(local.device, local.dtype))
    return norm


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sums_of_rows(tensor: Tensor) -> Tensor:
    """Return the sum of squares of each row, in 32 bits at least."""
    size = tensor.shape[0] if tensor.dim() else 1
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return (
        _halved(tensor.reshape(size, -1).to(wide).square())
        if size
        else tensor.new_empty(0, dtype=wide)
    )


def _halved(values: Tensor) -> Tensor:
    """Return the sum of each row: one half is added to the other, until one column is left.

    So the order does not depend on how many rows there are, as it may in `sum()`.
    """
    while (width := values.shape[1]) > 1:
        half = width // 2
        added = values[:, :half] + values[:, half : 2 * half]
        values = torch.cat([added, values[:, 2 * half :]], dim=1) if width % 2 else added
    return values.reshape(-1)
