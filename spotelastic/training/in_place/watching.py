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
from spotelastic.training.in_place.groups import groups
from spotelastic.training.runtime.patches import is_around, put_around

IN_PLACE = "SPOTELASTIC_IN_PLACE"
"""Variable: what ranks do that have kept their processes; empty: there are none."""
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
    put_around(DistributedDataParallel, "__init__", _noting_wrapper)
    # A collective that has failed is noted, whatever the script makes of its error.
    put_around(torch.autograd, "backward", _noting_failure)
    put_around(dist.Work, "wait", _noting_failure)
    loaders.watch()
    if is_around(c10d.init_process_group):
        return
    if not torch_names.wrap_making_of_groups(_noting_sockets):
        return  # another torch: nothing is known of its groups, so that workers cannot rest
    put_around(c10d, "init_process_group", _noting_options)
    dist.init_process_group = c10d.init_process_group


def _noting_options(init: Callable[..., None], *args: Any, **more: Any) -> None:
    hook, again = sys.excepthook, groups.hook is not None
    if os.environ.get("SPOTELASTIC_CONTROL"):
        # torch takes them for constants of the code that it compiles. It has a list of functions
        # whose value is looked at each time. The first optimizer imports that module in any case.
        torch_names.compile_no_results_of(dist.get_rank, dist.get_world_size)
    given = inspect.signature(init).bind(*args, **more).arguments
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    with groups.making():
        if groups.prepares is None:
            init(*args, **more)
        else:
            init(**{**given, "init_method": None, **alone})
    groups.options = given
    if not again:
        groups.hook = hook


def _noting_sockets(helper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(helper)
    def noted(*args: Any, **more: Any) -> Any:
        with groups.making():
            made = helper(*args, **more)
        groups.look_at_errors()
        return made

    return noted


def _noting_failure(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    try:
        return function(*args, **more)
    except Exception as error:
        groups.has_failed = groups.has_failed or failures.is_of_collective(error)
        raise


def _noting_wrapper(
    make: Callable[..., None], ddp: DistributedDataParallel, *args: Any, **more: Any
) -> None:
    make(ddp, *args, **more)
    wrapped.add(ddp)
    trained[ddp] = frozenset(id(each) for each in ddp.module.parameters() if each.requires_grad)
