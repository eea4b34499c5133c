"""Watches the collectives that a script makes in the block of a step, and has one of them fail.

A peer that is lost shows itself where a rank waits for it. So a rehearsal lets a collective of the
script's own fail as a lost peer would. Those of a backward pass are left out, as DDP makes them.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from spotelastic import torch_names

_MADE = ("all", "barrier", "broadcast", "gather", "reduce", "scatter")
"""Beginnings of the names of methods of a process group that all of its ranks call together."""


class Collectives:
    """Those of the default group that the main thread makes while it is watched."""

    def __init__(self) -> None:
        self.before_vote = 0
        """How many came before the vote of the step."""
        self.after_vote = 0
        self.passes_after_vote = 0
        """Backward passes, in which DDP makes collectives."""
        self._has_voted = False
        self.strikes_at: int | None = None
        """Number of the collective that fails, counted from 0; None: none does."""
        self.has_struck = False
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def voting(self) -> Iterator[None]:
        """Leave out what is called in the block: the vote is no collective of the script."""
        self._has_voted = True
        with self._left_out():
            yield

    @contextlib.contextmanager
    def _left_out(self) -> Iterator[None]:
        thread, self._thread = self._thread, 0
        try:
            yield
        finally:
            self._thread = thread

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch in the block."""
        names = (*_MADE, *torch_names.GROUP_COLLECTIVES)
        methods = vars(dist.ProcessGroup).items()
        kept = {name: method for name, method in methods if name.startswith(names)}
        backward = torch.autograd.backward
        try:
            torch.autograd.backward = self._counting(backward)
            for name in kept:
                method = self._noting(getattr(dist.ProcessGroup, name))
                setattr(dist.ProcessGroup, name, method)
            yield
        finally:
            torch.autograd.backward = backward
            for name, method in kept.items():
                setattr(dist.ProcessGroup, name, method)

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def noted(group: Any, *args: Any, **more: Any) -> Any:
            if threading.get_ident() == self._thread and group is dist.group.WORLD:
                self._made()
            return method(group, *args, **more)

        return noted

    def _counting(self, backward: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(backward)
        def counted(*args: Any, **more: Any) -> None:
            self.passes_after_vote += self._has_voted
            with self._left_out():  # DDP cannot go on where a hook of it has failed
                backward(*args, **more)

        return counted

    def _made(self) -> None:
        if self._has_voted:
            self.after_vote += 1
            return
        if self.strikes_at == self.before_vote and not self.has_struck:
            self.has_struck = True
            raise dist.DistBackendError("rehearsal: a peer is lost, as it would be in a collective")
        self.before_vote += 1
