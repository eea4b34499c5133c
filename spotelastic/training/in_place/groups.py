"""Knows of what a process's groups are made, closes them while it waits in them, and makes others.

A rank that waits in a collective is woken by what the collective waits for: its connections. gloo
has no call for that (`abort()` does nothing there), so its connections are shut down, and those
to the round's store, for which a rank waits while a group is made. NCCL's communicators are
aborted. The collective then fails as if the peer had closed it. No exception is raised into a
thread that runs.

Must never happen:

- A listening socket is shut down: gloo's own thread would end the process (`std::terminate`).
- A write of a rank that may be in a collective fails: gloo tells nobody who waits for that write
  (`Pair::signalException` leaves out unbound buffers that are being sent), so that the rank would
  wait on. So a rank that is woken has its own connections closed for reading alone, which ends them
  for gloo, and all that wait are told. And what its peers write is taken until all ranks have left
  the groups: gloo closes what has ended, after which the kernel would refuse it, so the connections
  are held open here. Nor are they closed for reading and writing, which has the kernel refuse it as
  well, unless NCCL has failed.
- A connection of something else is shut down, whatever thread or library has made it meanwhile.
  `runtime/connections.py` knows those of gloo and of the store; each is known by its inode, as
  descriptors are used again.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from spotelastic import torch_names
from spotelastic.training.in_place import nccl
from spotelastic.training.runtime import connections
from spotelastic.training.runtime.connections import Address

_OWN = ("SPOTELASTIC_", "TORCHELASTIC_")
"""Beginnings of variables that are the round's. Those that the new round lacks are removed."""
_OF_SCRIPT = ("backend", "timeout", "pg_options", "device_id")
"""What the script decides about its default group. Rank, size and store are the round's."""


@dataclass
class Groups:
    """The process groups of this process."""

    options: Mapping[str, Any] | None = None
    """What the script has given to `init_process_group()`; None: nothing, or before we looked."""
    prepares: dict[str, str] | None = None
    """The variables of the round that this new worker enters later; None: it is in its round."""
    hook: Any = None
    """`sys.excepthook` as it was before torch put a rank before what it says."""
    former: Any = None
    """The default group of the last round, to which models still belong; None if none do."""
    built: list[Any] = field(default_factory=list)
    """Groups that the script makes anew for each round."""
    is_closed: bool = False
    """Whether this process has closed its groups, and has made no others since."""
    has_failed: bool = False
    """Whether a collective of the present step has failed, also where the script caught that."""
    broken: str = ""
    """Why it has done so without having been asked."""
    rests: bool = False
    """Whether this worker rests when a collective fails."""
    looks: bool = False
    """Whether the errors of NCCL are looked at here."""
    voting: list[socket.socket] = field(default_factory=list)
    """Connections of the round's step votes."""
    most_held: int = 256
    """The most connections that are held open. A process may have some 1,000 descriptors."""
    _is_out: bool = False
    """Whether the main thread has closed the groups, and so is in no collective of theirs."""
    _held: dict[int, socket.socket] = field(default_factory=dict)
    """Connections that were shut down, by their inodes. They stay open while peers may write."""
    _store: frozenset[Address] = frozenset()
    """Where the round's store listens."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def problem(self, own: object) -> str:
        """Return why the groups could not be made again; empty if they can. `own` is ours."""
        if unknown := torch_names.problem():
            return unknown
        if not dist.is_initialized():
            return "there is no process group: call init_process_group() with one rank, too"
        if self.options is None:
            return (
                "the process group was made before spotelastic was imported: import "
                "spotelastic.training.checkpointer first"
            )
        given = self.options.get
        if given("store") is not None or given("init_method") not in (None, "env://"):
            return "init_process_group() was given an address: leave out store and init_method"
        backends = _backends()
        if others := sorted(backends - {"gloo", "nccl"}):
            return f"ranks that wait in a group of {others[0]} cannot be woken: use nccl or gloo"
        if "nccl" in backends and not self.looks:
            if nccl.finds_desync():
                return (
                    "to find ranks that are out of step, torch ends a process whose peer is lost: "
                    "unset TORCH_NCCL_DESYNC_DEBUG and TORCH_DISTRIBUTED_DEBUG"
                )
            if os.environ.get(nccl.HANDLING) != "0":
                return f"torch ends a process whose peer is lost: do not set {nccl.HANDLING}"
        if os.environ.get("TORCH_GLOO_LAZY_INIT", "0") not in ("", "0"):
            return "gloo connects late: unset TORCH_GLOO_LAZY_INIT"
        if self.others(own):
            return (
                "the script has made a process group of its own, which is bound to these ranks: "
                "use the default group, or make it in the function that is given as build="
            )
        return ""

    def others(self, own: object) -> int:
        """Return how many groups there are besides the known ones.

        Known are the default group, `own`, and those that are made for each round.
        """
        known = (dist.group.WORLD, own, *self.built)
        found = torch_names.groups_of_process()
        return sum(all(group is not each for each in known) for group in found)

    def wake(self) -> None:
        """Wake the main thread if it waits in a group, or for one that is being made.

        Of a group that is being made, more connections may appear afterwards. The peers are not
        woken: their own agents ask them to rest. gloo does not tell who waits for the rest of a
        message that is half there, which takes one of megabytes: the agent replaces such a rank.
        """
        with self._lock:
            if not self._is_out:
                self._shut(socket.SHUT_RD)

    def failed(self, error: str) -> None:
        """Wake the main thread, or end the process, because a collective of NCCL has failed."""
        if self.is_closed:
            return  # they were aborted
        if self.rests:
            self.broken = error
            self.wake()
        else:
            nccl.end(error)

    def close(self) -> None:
        """Close the connections, which wakes the neighbours. The main thread calls this.

        Where the agent has woken this rank, it wakes the others, too, and nothing is closed here.
        """
        with self._lock:
            if not self.is_closed or self.broken:
                self._shut(socket.SHUT_WR)
            self._is_out = True

    def votes_by(self, connection: socket.socket) -> None:
        """Have a connection of step votes shut and closed with the groups."""
        with self._lock:
            self.voting.append(connection)

    def _shut(self, how: int) -> None:
        self.is_closed = True
        _abort_nccl()
        many: list[socket.socket] = []
        for fd, inode in connections.of_groups(self._store).items():
            found = None if inode in self._held else connections.opened(fd, inode)
            if found is not None and len(self._held) < self.most_held:
                self._held[inode] = found
            elif found is not None:
                many.append(found)
        for connection in (*self._held.values(), *self.voting, *many):
            with contextlib.suppress(OSError):
                connection.shutdown(how)
        for connection in many:
            connection.close()

    def leave(self) -> None:
        """Leave all groups, if there are any. A driver may never return from it.

        Raises what torch raises where the device is lost with what was aborted.
        """
        with self._lock:  # no other thread closes what is going
            if self.former is None:
                self.former = dist.group.WORLD
            for leave in (dist.destroy_process_group, torch_names.abort_groups):
                if dist.is_initialized():
                    with contextlib.suppress(Exception):
                        leave()
            # torch names groups by this count, and has not set it back where a group was not
            # finished. Ranks with other names would wait for each other.
            torch_names.set_group_count(0)
            self.built.clear()
            for connection in (*self._held.values(), *self.voting):
                connection.close()
            self._held.clear()
            self.voting.clear()
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()

    def make(self, variables: Mapping[str, str]) -> None:
        """Leave all groups, and make the default one anew with the ranks of another round.

        Raises what torch raises where a peer is lost meanwhile.
        """
        options = self.options
        assert options is not None
        self.leave()
        self.prepares, self.is_closed, self.broken = None, False, ""
        self._is_out = self.has_failed = False
        set_variables(variables)
        if self.hook is not None and torch_names.is_rank_hook(sys.excepthook):
            sys.excepthook = self.hook
        dist.init_process_group(**{name: options[name] for name in _OF_SCRIPT if name in options})

    def leave_built(self) -> None:
        """Leave the groups that were made for this round besides the default one.

        All ranks call this.
        """
        for group in self.built:
            if group is not dist.group.WORLD:
                dist.destroy_process_group(group)
        self.built.clear()

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Knows the groups that are made in the block as ones that are made for each round."""
        before = torch_names.groups_of_process()
        try:
            yield
        finally:
            now = torch_names.groups_of_process()
            self.built += [each for each in now if all(each is not known for known in before)]

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Wakes the main thread from here on also where it waits for the store."""
        self._store = connections.of_store(os.environ)
        with nccl.noting_only() if nccl.is_ours() else contextlib.nullcontext():
            yield

    def look_at_errors(self) -> None:
        """Look at what NCCL's collectives come to, if torch only notes it."""
        if not self.looks and nccl.is_ours() and nccl.backends():
            self.looks = True
            nccl.start(self.failed)


def set_variables(variables: Mapping[str, str]) -> None:
    """Have `os.environ` hold what a new worker of the round would find there."""
    for name in [*os.environ]:
        if name.startswith(_OWN) and name not in variables:
            del os.environ[name]
    os.environ.update(variables)


def _backends() -> set[str]:
    """Return the names of the default group's backends."""
    told = str(dist.get_backend_config())
    return {part.rpartition(":")[2] for part in told.split(",")}


def _abort_nccl() -> None:
    """Abort all communicators of this process.

    The process groups themselves stay known, so that the script can still ask for its rank.
    """
    if dist.is_initialized() and "nccl" in _backends():
        abort_all(torch_names.groups_of_process())


def abort_all(groups: Sequence[Any]) -> None:
    """Abort all communicators at once.

    Each first tells its kernels to end, and then waits for the device. Aborted one after the other,
    it would wait for kernels that nobody has told yet.

    torch brackets aborts as a group of NCCL's for that. It is of no use, because torch makes each
    abort in a thread of its own, and NCCL's groups are those of a thread.
    """
    aborts = [
        threading.Thread(target=_abort, args=(group,), name="abort", daemon=True)
        for group in groups
    ]
    for abort in aborts:
        abort.start()
    for abort in aborts:
        abort.join()


def _abort(group: Any) -> None:
    with contextlib.suppress(RuntimeError):
        group.abort()


groups = Groups()
"""Those of this process."""
