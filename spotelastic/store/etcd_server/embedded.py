"""Runs an etcd member inside a job's agent: a single one, or one of three or five on as many nodes.

Its data are in a folder of the agent, and are deleted with it. A node that comes back has forgotten
what it promised to the others, and must not go on under its old identity.

    too few of the others have an address ─────► wait: they may serve, and only not be found
    no other member answers ───────────────────► found: a new cluster (etcd itself refuses a member
                                                 that the others have seen serve)
    others answer; listed, but never served ───► join: as it is listed
    others answer; listed, and served once ────► replace: be removed and added as a new member
    others answer; not listed ─────────────────► add
    others answer, and a change is needed, but they have no leader ──► wait until they have

A member that ends is started again from its folder. When it ends again at once, it is started as if
the folder were gone.
"""

import contextlib
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from spotelastic_checkpoints import addresses

from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable, told
from spotelastic.store.etcd_server import process, roster
from spotelastic.store.etcd_server.roster import ListedMember, Roster
from spotelastic.store.tls import TlsFiles

Entry = Literal["found", "join", "replace", "add", "wait"]
"""How a member without data enters its cluster."""

SHORT_LIFE = 5.0
"""Seconds. A member that ends sooner is started without its folder the next time."""
TRIES = 3
"""Short lives after which a member that never served is given up."""
LOOK_AGAIN = 0.5
"""Seconds between attempts to enter the cluster."""
_JOIN = 10.0


@dataclass(frozen=True, slots=True)
class EmbeddedCluster:
    """The members of a job's etcd."""

    peers: dict[str, str]
    """Endpoint among members ("host:port") by endpoint for clients."""
    token: str
    """Id of the cluster, which keeps clusters on the same machines apart."""
    tls: TlsFiles | None = None


class PortTaken(EnvironmentFailure):
    """Another process listens at the member's endpoint."""


def entry(peer: str, seen: Roster | None, *, findable: bool = True) -> Entry:
    """Decide how a member without data enters, from what the other members say.

    `findable` tells whether enough of them have an address to agree with this one.
    """
    if seen is None:
        return "found" if findable else "wait"
    mine = _find(peer, seen.members)
    if mine is not None and not mine.served:
        return "join"
    if not seen.led:
        return "wait"
    return "add" if mine is None else "replace"


class Embedded:
    """The member at `endpoint`, kept running by a thread until `close`."""

    def __init__(
        self,
        group: EmbeddedCluster,
        endpoint: str,
        folder: Path,
        say: Callable[[str], None],
        *,
        listen: str = "",
    ) -> None:
        """Start the member.

        `listen` is the address to listen at, if it is not that of `endpoint`.
        """
        self.endpoint = endpoint
        self.group = group
        self.failure: SpotelasticError | None = None
        """Why the member was given up before it ever served; None otherwise."""
        self._others = [each for each in group.peers if each != endpoint]
        self._folder = folder
        self._say = say
        self._binary = process.find_binary()
        self._config = process.MemberConfig(
            endpoint,
            folder / "data",
            endpoint,
            group.peers[endpoint],
            listen=listen,
            tls=group.tls,
            cluster=group.peers,
            token=group.token,
            fsync=False,
            # A replacement can then enter while a third member is away.
            flags=("--strict-reconfig-check=false",),
        )
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._member: process.EtcdMember | None = None
        if self._others and self._binary.version < process.MINIMUM:
            say(
                f"{self._binary} may corrupt data when a member is killed; its corruption check is "
                "on, but etcd 3.5.6 or newer on PATH is better"
            )
        # A member is killed when the thread that started it ends, so this needs a thread that
        # lasts.
        self._thread = threading.Thread(target=self._run, name="etcd", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id. Raises `Unavailable` while the member does not run."""
        with self._lock:
            if self._member is None:
                raise Unavailable(f"the etcd member at {self.endpoint} is not running")
            return self._member.pid

    def leave(self) -> None:
        """Remove the member from the cluster, so that the quorum no longer needs it; then close."""
        tls = self.group.tls
        try:
            seen = roster.ask([self.endpoint, *self._others], tls)
            if seen is not None and seen.led and self._others:
                self._resign(seen)
        except Unavailable:
            pass  # The others go on with a member that is away.
        self.close()

    def close(self) -> None:
        """Stop the member. Its data stay."""
        self._closing.set()
        with self._lock:
            if self._member is not None:
                self._member.stop()
        self._thread.join(_JOIN)

    def __enter__(self) -> "Embedded":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- its thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep()
        except SpotelasticError as error:
            self.failure = error
        except Exception as error:
            self.failure = EnvironmentFailure(
                f"the etcd member here is no longer supervised: {told(error)}"
            )

    def _keep(self) -> None:
        afresh, served, short = True, False, 0
        while not self._closing.is_set():
            if afresh and not self._enter():
                return
            started = steady()
            code, why = self._live()
            if self._closing.is_set():
                return
            short = short + 1 if steady() - started < SHORT_LIFE else 0
            served = served or not short
            if not served:
                self._give_up(code, why, short)
            afresh = bool(short and self._others)
            self._say(f"the etcd member here ended with {code} ({why}): starting it again")
            self._closing.wait(LOOK_AGAIN if short else 0.0)

    def _give_up(self, code: int, why: str, tries: int) -> None:
        """Raise the reason why the member does not start, once it is certain."""
        if "address already in use" in why:
            raise PortTaken(f"etcd cannot listen at {self.endpoint}: {why}")
        if tries >= TRIES or not self._others:
            raise EnvironmentFailure(f"etcd at {self.endpoint} ended with {code}: {why}")

    def _live(self) -> tuple[int, str]:
        """Run the process once. Returns its exit code and its last message."""
        log = self._folder / "etcd.log"
        with self._lock:
            if self._closing.is_set():
                return 0, ""
            self._member = member = process.EtcdMember(self._config, log=log, binary=self._binary)
            member.start()
        return member.wait(), member.last_words()

    def _enter(self) -> bool:
        """Wait until the member may start without data. Returns False when closed before that."""
        told = ""
        while not self._closing.is_set():
            seen = roster.ask(self._others, self.group.tls)
            lost = [] if seen is not None else [each for each in self._others if not _found(each)]
            findable = 2 * len(lost) < len(self.group.peers)
            how = entry(self._config.peer, seen, findable=findable)
            try:
                cluster = self._change(how, seen)
            except Unavailable as error:
                cluster, told = {}, self._tell(told, str(error))
            if cluster:
                shutil.rmtree(self._config.data_dir, ignore_errors=True)
                state = "new" if seen is None else "existing"
                self._config = replace(self._config, cluster=cluster, state=state)
                return True
            if how == "wait":
                why = f"no address is known for {', '.join(lost)}" if lost else ""
                told = self._tell(told, why or "the others have no leader")
            self._closing.wait(LOOK_AGAIN)
        return False

    def _tell(self, told: str, why: str) -> str:
        if why != told:
            self._say(f"the etcd member here cannot start yet: {why}")
        return why

    def _change(self, how: Entry, seen: Roster | None) -> dict[str, str]:
        """Make the cluster accept the member.

        Returns all members by name, or none while it cannot.
        """
        if how == "wait":
            return {}
        if seen is None:
            return self.group.peers
        tls, peer = self.group.tls, self._config.peer
        members = seen.members
        if how == "replace":
            mine = _find(peer, members)
            assert mine is not None
            roster.remove(seen.endpoint, mine.id, tls)
        if how in ("replace", "add"):
            roster.add(seen.endpoint, peer, tls)
        others = {each.name: each.peer for each in members if each.peer != peer}
        return {**others, self._config.name: peer}

    def _resign(self, seen: Roster) -> None:
        tls = self.group.tls
        alive = [other for other in self._others if process.serves(other, tls)]
        peers = {self.group.peers[other] for other in alive}
        heirs = [each.id for each in seen.members if each.peer in peers]
        mine = _find(self._config.peer, seen.members)
        if mine is None or not heirs:
            return
        # Members that are away would count for the quorum of the rest.
        for each in seen.members:
            if each.id not in heirs and each != mine:
                roster.remove(seen.endpoint, each.id, tls)
        if process.leads(self.endpoint, tls=tls):
            roster.hand_over(self.endpoint, heirs[0], tls)
        roster.remove(alive[0], mine.id, tls)


def _found(endpoint: str) -> bool:
    """Whether the host's name has an address now."""
    with contextlib.suppress(OSError, UnicodeError):
        return bool(addresses.resolve(addresses.split(endpoint)[0]))
    return False


def _find(peer: str, members: Sequence[ListedMember]) -> ListedMember | None:
    return next((each for each in members if each.peer == peer), None)
