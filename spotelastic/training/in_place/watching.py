"""Looks at the process groups that a script makes, and at the models that use them.

Nothing is asked of the script. It may make both before it imports spotelastic, so that an agent's
worker begins to look before its script does.

A new worker of a round whose other ranks have kept their processes begins in a group of one. Those
ranks are in the middle of their loops, and take no part in what a script does before its loop: DDP
compares and sends parameters when it is made, and scripts have barriers. So a new worker does all
that alone, and enters the round where the others do, before its first step.
"""

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from spotelastic import torch_names
from spotelastic.training.in_place import failures, loaders
from spotelastic.training.in_place.groups import Options, groups

IN_PLACE = "SPOTELASTIC_IN_PLACE"
"""Variable that says what ranks of the round do that have kept their processes; empty: there are
none.
"""
_ALONE = {"RANK": "0", "WORLD_SIZE": "1"}

wrapped: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
"""The wrappers of this process. A script may have the model within in its state instead."""


trained: weakref.WeakKeyDictionary[DistributedDataParallel, frozenset[int]]
trained = weakref.WeakKeyDictionary()
"""The ids of the parameters that each of them had to reduce when it was made."""


def watch() -> None:
    """Look at what process groups are made of from now on.

    Call it in each process that was forked from one that looks.
    """
    if os.environ.get(IN_PLACE) and not dist.is_initialized() and groups.options is None:
        groups.prepares = groups.prepares or dict(os.environ)
        os.environ.update(_ALONE)
    _note_wrappers()
    _note_failures()
    loaders.watch()
    if hasattr(c10d.init_process_group, "_spotelastic"):
        return
    if not torch_names.wrap_making_of_groups(_noting_sockets):
        return  # another torch: nothing is known of its groups, so that workers cannot rest
    init = _noting_options(c10d.init_process_group)
    init._spotelastic = True  # type: ignore[attr-defined]
    c10d.init_process_group = dist.init_process_group = init


def _noting_options(init: Callable[..., None]) -> Callable[..., None]:
    names = inspect.signature(init)

    @functools.wraps(init)
    def noted(*args: Any, **more: Any) -> None:
        hook, again = sys.excepthook, groups.hook is not None
        if os.environ.get("SPOTELASTIC_CONTROL"):
            _guard_ranks()
        given = names.bind(*args, **more).arguments
        store = dist.HashStore()
        alone = {"store": store, "rank": 0, "world_size": 1}
        with groups.making():
            if groups.prepares is None:
                init(*args, **more)
            else:
                init(**{**given, "init_method": None, **alone})
        groups.options = Options(
            given.get("backend"),
            given.get("timeout"),
            given.get("pg_options"),
            given.get("device_id"),
            given.get("store") is None and given.get("init_method") in (None, "env://"),
        )
        if not again:
            groups.hook = hook

    return noted


def _guard_ranks() -> None:
    """Have code compiled again that has taken in a rank or a number of ranks which has changed.

    torch takes `get_rank()` and `get_world_size()` for constants of the code that it compiles. It
    has a list of such functions whose value is looked at each time. The first optimizer imports the
    module with it in any case.
    """
    torch_names.compile_no_results_of(dist.get_rank, dist.get_world_size)


def _noting_sockets(helper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(helper)
    def noted(*args: Any, **more: Any) -> Any:
        with groups.making():
            made = helper(*args, **more)
        groups.look_at_errors()
        return made

    return noted


def _note_failures() -> None:
    """Note that a collective has failed, whatever the script makes of its error."""
    if hasattr(torch.autograd.backward, "_spotelastic"):
        return
    torch.autograd.backward = _noting_failures(torch.autograd.backward)
    dist.Work.wait = _noting_failures(dist.Work.wait)  # type: ignore[method-assign]


def _noting_failures(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(*args: Any, **more: Any) -> Any:
        try:
            return function(*args, **more)
        except Exception as error:
            groups.has_failed = groups.has_failed or failures.is_of_collective(error)
            raise

    noted._spotelastic = True  # type: ignore[attr-defined]
    return noted


def _note_wrappers() -> None:
    made = DistributedDataParallel.__init__
    if hasattr(made, "_spotelastic"):
        return

    @functools.wraps(made)
    def noted(self: DistributedDataParallel, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        wrapped.add(self)
        own = self.module.parameters()
        trained[self] = frozenset(id(each) for each in own if each.requires_grad)

    noted._spotelastic = True  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = noted  # type: ignore[method-assign]
