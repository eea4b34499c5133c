"""Finds, joins or starts the etcd that the nodes of a run rendezvous through, and shuts it down.

alone            ► an etcd of its own
client           ► waits until one that is there answers
host             ► runs a member at its endpoint, and waits until enough of the others are there
guest            ► waits for the hosts
either           ► host at the first endpoint of this machine that nobody listens at, else guest
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic_checkpoints.addresses import (
    bare,
    everywhere,
    is_free,
    is_link_local,
    is_loopback,
    join,
    resolve,
    split,
    towards,
)

from spotelastic.agent.workers import ports
from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.launcher.rendezvous_config import RendezvousConfig
from spotelastic.store.tls import TlsFiles

if TYPE_CHECKING:
    from spotelastic.store.diagnose import Diagnosis
    from spotelastic.store.etcd_server.embedded import Embedded

ANSWER_WITHIN = 4.0
"""Seconds for an etcd that is said to be there."""
LOOK_AGAIN = 0.2
LEAVE_WITHIN = 30.0
"""Seconds that a node with a member waits for others to leave once the job has ended."""
QUORUM_WITHIN = 3.0
"""Seconds after which an etcd without a quorum, once the job has ended, tells nobody any more."""

LINGER = 0.5
"""Seconds that a member stays when all have left, for the last of the other hosts to see it too."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a node has arrived: `address` is its own, as the others reach it."""

    endpoints: tuple[str, ...]
    address: str
    tls: TlsFiles | None = None
    member: "Embedded | None" = None
    """Runs here, for others too."""


@contextlib.contextmanager
def meet(asked: RendezvousConfig, folder: Path, say: Say) -> Iterator[Rendezvous]:
    """An etcd that answers, until the end of the block. Raises `UsageError`, and
    `EnvironmentFailure` when nobody is there in time."""
    if (
        asked.role in ("alone", "host")
        and asked.master_port
        and not ports.is_free(asked.master_port)
    ):
        raise UsageError(
            f"--master-port {asked.master_port}: is in use on this machine; the workers meet there"
        )
    if asked.role == "alone":
        from spotelastic.store.etcd_server.process import standalone

        with standalone(folder) as member:
            yield Rendezvous((member.endpoint,), "127.0.0.1")
    elif asked.role == "client":
        _await(asked, ANSWER_WITHIN, say)
        yield Rendezvous(asked.endpoints, "", asked.tls)
    else:
        with _host_or_guest(asked, folder, say) as place:
            yield place


def part(place: Rendezvous, run: str, *, ended: bool) -> None:
    """Before a node that runs a member goes: once the job has ended, when no node needs it to hear
    so; before that, with the others' consent."""
    if place.member is None:
        return
    if ended:
        _see_off(place, run)
    else:
        place.member.leave()


# -- hosts and guests -----------------------------------------------------------------------------


@contextlib.contextmanager
def _host_or_guest(asked: RendezvousConfig, folder: Path, say: Say) -> Iterator[Rendezvous]:
    from spotelastic.store.etcd_server.embedded import PortTaken

    addresses = {} if asked.role == "guest" else _resolve_all(asked)
    seats = _seats(asked, addresses)
    with contextlib.ExitStack() as stack:
        while True:
            member = _sit_down(asked, seats, addresses, folder, say)
            if member is not None:
                stack.enter_context(member)
            try:
                _await(asked, asked.join_within, say, member)
                break
            except PortTaken:  # by another node of this machine, which was faster
                continue
        yield Rendezvous(asked.endpoints, _own_place(asked, seats), asked.tls, member)


def _seats(asked: RendezvousConfig, addresses: dict[str, str]) -> list[str]:
    """The endpoints that are this machine's, in order."""
    mine = [endpoint for endpoint, address in addresses.items() if is_free(address, 0)]
    near = [endpoint for endpoint in mine if addresses[endpoint] == asked.near]
    if asked.role == "host" and not mine:
        told = "node 0 runs the etcd there, but that is not this machine"
        raise UsageError(f"{asked.where}: {told}")
    return near or mine


def _sit_down(
    asked: RendezvousConfig, seats: list[str], addresses: dict[str, str], folder: Path, say: Say
) -> "Embedded | None":
    """Starts a member at the first free one of the seats; None when there is none."""
    from spotelastic.store.etcd_server.embedded import Embedded, EmbeddedCluster
    from spotelastic.store.etcd_server.process import free_ports

    for seat in seats:
        address, peers = addresses[seat], asked.peers
        if not is_free(address, _port(seat)):
            continue
        if len(peers) == 1:
            peers = {seat: join(_host(seat), free_ports(1, address)[0])}
        elif not is_free(address, _port(peers[seat])):
            if _settles(lambda address=address, seat=seat: not is_free(address, _port(seat))):  # type: ignore[misc]
                continue  # another node of this machine was just about to sit down
            raise UsageError(
                f"{asked.where}: members speak with each other at port {_port(peers[seat])}, "
                "which is in use here (--rdzv-conf peer_port=… for all hosts)"
            )
        group = EmbeddedCluster(
            peers, f"{asked.run} at {','.join(sorted(asked.endpoints))}", asked.tls
        )
        # A machine's own name often is a loopback address there, and another one elsewhere; and
        # etcd takes no address with an interface.
        elsewhere = is_loopback(address) and not is_loopback(_host(seat))
        listen = everywhere(address) if elsewhere or "%" in address else address
        return Embedded(group, seat, folder / str(_port(seat)), say, listen=listen)
    if asked.role == "host":
        raise UsageError(f"{asked.where}: the etcd's port is in use on this machine")
    return None


def _own_place(asked: RendezvousConfig, seats: Sequence[str]) -> str:
    """This node's address, as machines elsewhere reach it."""
    far = [endpoint for endpoint in asked.endpoints if endpoint not in seats]
    address = _own_address(*split(far[0] if far else asked.endpoints[0]))
    if is_loopback(address) and not all(is_loopback(_host(each)) for each in asked.endpoints):
        return own_address(like=address)
    return address


# -- waiting --------------------------------------------------------------------------------------


def _await(
    asked: RendezvousConfig, within: float, say: Say, member: "Embedded | None" = None
) -> None:
    """Until one of the endpoints serves as etcd 3 does."""
    from spotelastic.store.diagnose import diagnose
    from spotelastic.store.etcd_server.process import serves

    deadline, pause, told = steady() + within, threading.Event(), ""
    with ThreadPoolExecutor(len(asked.endpoints)) as pool:

        def look(late: float | None = None) -> None:
            found = list(pool.map(lambda each: diagnose(each, asked.tls), asked.endpoints))
            if late is not None or all(each.final for each in found):
                raise EnvironmentFailure(_silence(asked, found, late))

        if asked.tls and member is None:
            look()  # before gRPC does, which prints what it thinks of certificates
        first = member is None
        while not any(pool.map(lambda each: serves(each, asked.tls), asked.endpoints)):
            if member is not None and member.failure is not None:
                raise member.failure
            if first:
                look()
            if steady() >= deadline:
                look(late=within)
            if asked.role != "client":
                told = _tell(asked, member.endpoint if member else "", told, say)
            first = False
            pause.wait(LOOK_AGAIN)


def _silence(asked: RendezvousConfig, found: Sequence["Diagnosis"], within: float | None) -> str:
    told = [each.told for each in found]
    if len(told) > 1:
        told = [f"{at}: {why}" for at, why in zip(asked.endpoints, told, strict=True)]
    conf = f" --rdzv-conf {asked.tls}" if asked.tls else ""
    limit = "" if within is None else f" answered within {within:g} s"
    return f"{asked.where}{conf}: no etcd 3{limit}: {'; '.join(told)}"


def _tell(asked: RendezvousConfig, mine: str, told: str, say: Say) -> str:
    """A line when those that are waited for are others than before."""
    missing = [each for each in asked.endpoints if each != mine and not _is_there(each)]
    count = f"{len(missing)} of {len(asked.endpoints)} etcd members"
    line = f"waits for {count}: {', '.join(missing)}" if missing else ""
    if line and line != told:
        say(line)
    return line


def _see_off(place: Rendezvous, run: str) -> None:
    """Wait until no node of the run is left, so that each has heard how the job ended."""
    from spotelastic.store.etcd import EtcdStore
    from spotelastic.store.keys import Keys
    from spotelastic.store.port import Change, Health, Reset, WatchItem

    here: set[str] = set()
    changed = threading.Condition()
    give_up, last = steady() + QUORUM_WITHIN, steady() + LEAVE_WITHIN
    known = False

    def fold(items: Sequence[WatchItem]) -> None:
        nonlocal give_up, known
        with changed:
            for item in items:
                match item:
                    case Reset(values=values):
                        here.clear()
                        here.update(value.key for value in values)
                        known, give_up = True, last
                    case Change(key=key, value=value):
                        (here.discard if value is None else here.add)(key)
                    case Health(healthy=healthy):
                        give_up = last if healthy else min(last, steady() + QUORUM_WITHIN)
            changed.notify_all()

    store = EtcdStore(place.endpoints, tls=place.tls)
    try:
        watch = store.watch(Keys(run).live(), fold)
        with changed:
            while (here or not known) and (left := give_up - steady()) > 0:
                changed.wait(left)
            if not here and len(place.endpoints) > 1:
                changed.wait(LINGER)
        watch.close()
    finally:
        store.close()


# -- addresses and ports --------------------------------------------------------------------------


def local_address(text: str) -> str:
    """--local-addr as an IP address, because a name is never advertised."""
    return _resolve("--local-addr", bare(text))[0]


def own_address(*, like: str = "") -> str:
    """The address that packets to the outside leave from, of IPv6 only where `like` is or there is
    no other; nothing is sent."""
    first, second = ("2001:db8::1", "192.0.2.1") if ":" in like else ("192.0.2.1", "2001:db8::1")
    try:
        return towards(first, 9)
    except OSError:
        return _own_address(second, 9)


def _own_address(host: str, port: int) -> str:
    """That of this machine by which it reaches the host."""
    try:
        return towards(host, port)
    except OSError as error:
        raise EnvironmentFailure("this machine has no route: give --local-addr") from error


def _resolve_all(asked: RendezvousConfig) -> dict[str, str]:
    """The IP address of each endpoint: one of this machine, where a name has several."""
    found = {each: _resolve(asked.where, _host(each)) for each in asked.endpoints}
    return {
        each: next((one for one in several if is_free(one, 0)), several[0])
        for each, several in found.items()
    }


def _resolve(where: str, host: str) -> list[str]:
    """Those of IPv4 first."""
    try:
        found = resolve(host)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{where}: no address is known for {host}") from error
    if is_link_local(found[0]) and ":" in found[0] and "%" not in found[0]:
        told = f"{found[0]} is good on one interface: name it, as in {found[0]}%eth0"
        raise UsageError(f"{where}: {told}")
    return found


def _is_there(endpoint: str) -> bool:
    try:
        with socket.create_connection(split(endpoint), timeout=1.0):
            return True
    except OSError:
        return False


def _settles(so: Callable[[], bool]) -> bool:
    """Whether it becomes so within a second."""
    give_up, pause = steady() + 1.0, threading.Event()
    while not so():
        if steady() >= give_up:
            return False
        pause.wait(0.05)
    return True


def _host(endpoint: str) -> str:
    return split(endpoint)[0]


def _port(endpoint: str) -> int:
    return split(endpoint)[1]
