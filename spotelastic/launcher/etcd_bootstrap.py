"""Finds, joins or starts the etcd that the nodes of a run rendezvous through, and shuts it down.

What a node does depends on its role:

    alone    run an etcd of its own
    client   wait until an existing etcd answers
    host     run an etcd member at its endpoint, and wait until enough of the others are up
    guest    wait for the hosts
    either   be host at the first free endpoint of this machine, else guest
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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
from spotelastic.launcher import run_secrets
from spotelastic.launcher.rendezvous_config import RendezvousConfig
from spotelastic.launcher.run_secrets import RunSecrets
from spotelastic.store.tls import TlsFiles

if TYPE_CHECKING:
    from spotelastic.store.diagnose import Diagnosis
    from spotelastic.store.etcd_server.embedded import Embedded

ANSWER_WITHIN = 4.0
"""Seconds within which an existing etcd must answer."""
READ_WITHIN = 2.0
"""Seconds within which an etcd that is there answers one read, also on a machine that is busy."""
LOOK_AGAIN = 0.2
"""Seconds between two looks for etcd members."""
LEAVE_WITHIN = 30.0
"""Seconds that a node with an etcd member waits for other nodes to leave after the job's end."""
QUORUM_WITHIN = 3.0
"""Seconds without a quorum, after the job's end, after which etcd can inform no node any more."""

LINGER = 0.5
"""Seconds that an etcd member stays after all nodes have left, for the other hosts to see it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the nodes of the run meet, as seen from this node."""

    endpoints: tuple[str, ...]
    address: str
    """This node's own address, as the others reach it; empty if not known here."""
    tls: TlsFiles | None = None
    member: "Embedded | None" = None
    """The etcd member that this node runs, if it runs one."""
    token: str = ""
    """What checkpoint daemons of the run prove themselves with."""


@contextlib.contextmanager
def meet(asked: RendezvousConfig, folder: Path, say: Say) -> Iterator[Rendezvous]:
    """Yield an etcd that answers, and end this node's etcd member afterwards.

    Raises `UsageError`, and `EnvironmentFailure` if no etcd answers in time.
    """
    if (
        asked.role in ("alone", "host")
        and asked.master_port
        and not ports.is_free(asked.master_port)
    ):
        raise UsageError(
            f"--master-port {asked.master_port}: is in use on this machine, and the workers need it"
        )
    if asked.role == "alone":
        from spotelastic.store.etcd_server.process import standalone

        own = run_secrets.made_in(folder / "secrets")
        with standalone(folder, tls=own.tls) as member:
            yield Rendezvous((member.endpoint,), "127.0.0.1", own.tls, token=own.token)
        return
    own = secrets_of(asked)
    asked = replace(asked, tls=own.tls, own_tls=own.tls is not asked.tls)
    with contextlib.ExitStack() as stack:
        if asked.role == "client":
            _await(asked, ANSWER_WITHIN, say)
            rendezvous = Rendezvous(asked.endpoints, "", asked.tls)
        else:
            rendezvous = stack.enter_context(_host_or_guest(asked, folder, say))
        if own.warning:
            say(own.warning)
        yield replace(rendezvous, token=own.token)


def secrets_of(asked: RendezvousConfig) -> RunSecrets:
    """Return the secrets of a run with several nodes."""
    here = run_secrets.is_on_one_machine(asked)
    if asked.tls is not None or asked.plain or asked.await_names:
        return RunSecrets(asked.tls)
    if not here:
        return RunSecrets(warning=run_secrets.OPEN)
    if asked.role == "client":  # of an etcd that somebody else has set up
        return RunSecrets()
    try:
        return run_secrets.shared_on(asked)
    except OSError as error:
        return RunSecrets(warning=f"cannot store the run's secrets ({error}): {run_secrets.OPEN}")


def leave_rendezvous(rendezvous: Rendezvous, run: str, *, ended: bool) -> None:
    """Stop this node's etcd member.

    After the job has ended, wait until every node has seen the result. Otherwise remove the member
    from the etcd cluster first, so that quorum is kept.
    """
    if rendezvous.member is None:
        return
    if ended:
        _await_departures(rendezvous, run)
    else:
        rendezvous.member.leave()


# -- hosts and guests -----------------------------------------------------------------------------


@contextlib.contextmanager
def _host_or_guest(asked: RendezvousConfig, folder: Path, say: Say) -> Iterator[Rendezvous]:
    from spotelastic.store.etcd_server.embedded import PortTaken

    addresses = {} if asked.role == "guest" else _addresses(asked)
    own = _own_endpoints(asked, addresses)
    with contextlib.ExitStack() as stack:
        while True:
            member = _start_member(asked, own, addresses, folder, say)
            if member is not None:
                stack.enter_context(member)
            try:
                _await(asked, asked.join_within, say, member)
                break
            except PortTaken:  # another node on this machine was faster
                continue
        yield Rendezvous(asked.endpoints, _reachable_address(asked, own), asked.tls, member)


def _own_endpoints(asked: RendezvousConfig, addresses: dict[str, str]) -> list[str]:
    """Return the endpoints that belong to this machine, in order."""
    mine = [endpoint for endpoint, address in addresses.items() if is_free(address, 0)]
    near = [endpoint for endpoint in mine if addresses[endpoint] == asked.near]
    if asked.role == "host" and not mine:
        told = "node 0 runs the etcd there, but that is not this machine"
        raise UsageError(f"{asked.where}: {told}")
    # A machine has all loopback addresses: of several nodes on it, each has only the one it names.
    return near if near or is_loopback(asked.near) else mine


def _start_member(
    asked: RendezvousConfig, own: list[str], addresses: dict[str, str], folder: Path, say: Say
) -> "Embedded | None":
    """Start an etcd member at the first free endpoint of this machine; None if there is none."""
    from spotelastic.store.etcd_server.embedded import Embedded, EmbeddedCluster
    from spotelastic.store.etcd_server.process import free_ports

    for endpoint in own:
        address, peers = addresses[endpoint], asked.peers
        if not is_free(address, _port(endpoint)):
            continue
        if len(peers) == 1:
            peers = {endpoint: join(_host(endpoint), free_ports(1, address)[0])}
        elif not is_free(address, _port(peers[endpoint])):
            if _becomes_taken(address, _port(endpoint)):
                continue  # another node on this machine is just taking this endpoint
            raise UsageError(
                f"{asked.where}: etcd members use port {_port(peers[endpoint])} among each other, "
                "which is in use here: give --rdzv-conf peer_port=… on all hosts"
            )
        group = EmbeddedCluster(
            peers, f"{asked.run} at {','.join(sorted(asked.endpoints))}", asked.tls
        )
        # A machine's name often resolves to a loopback address on the machine itself, and to
        # another elsewhere: unless --local-addr says that it is this one that others know.
        # And etcd accepts no address that names an interface.
        known = address == asked.near or is_loopback(_host(endpoint))
        elsewhere = is_loopback(address) and not known
        listen = everywhere(address) if elsewhere or "%" in address else address
        return Embedded(group, endpoint, folder / str(_port(endpoint)), say, listen=listen)
    if asked.role == "host":
        raise UsageError(f"{asked.where}: the etcd's port is in use on this machine")
    return None


def _reachable_address(asked: RendezvousConfig, own: Sequence[str]) -> str:
    """Return this node's address, as other machines reach it."""
    if asked.await_names:
        return asked.near or own_address()
    far = [endpoint for endpoint in asked.endpoints if endpoint not in own]
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
                raise EnvironmentFailure(_describe_silence(asked, found, late))

        if asked.tls and member is None:
            look()  # before gRPC connects, which prints its own complaints about certificates
        first = member is None
        while not any(pool.map(lambda each: serves(each, asked.tls, READ_WITHIN), asked.endpoints)):
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


def _describe_silence(
    asked: RendezvousConfig, found: Sequence["Diagnosis"], within: float | None
) -> str:
    told = [each.told for each in found]
    if len(told) > 1:
        told = [f"{at}: {why}" for at, why in zip(asked.endpoints, told, strict=True)]
    conf = f" --rdzv-conf {asked.tls}" if asked.tls and not asked.own_tls else ""
    limit = "" if within is None else f" answered within {within:g} s"
    return f"{asked.where}{conf}: no etcd 3{limit}: {'; '.join(told)}"


def _tell(asked: RendezvousConfig, mine: str, told: str, say: Say) -> str:
    """Report which etcd members are missing, when these have changed; return the line."""
    missing = [each for each in asked.endpoints if each != mine and not _is_there(each)]
    count = f"{len(missing)} of {len(asked.endpoints)} etcd members"
    line = f"waiting for {count}: {', '.join(missing)}" if missing else ""
    if line and line != told:
        say(line)
    return line


def _await_departures(rendezvous: Rendezvous, run: str) -> None:
    """Wait until no node of the run is left, so that each has seen how the job ended."""
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

    store = EtcdStore(rendezvous.endpoints, tls=rendezvous.tls)
    try:
        watch = store.watch(Keys(run).live(), fold)
        with changed:
            while (here or not known) and (left := give_up - steady()) > 0:
                changed.wait(left)
            if not here and len(rendezvous.endpoints) > 1:
                changed.wait(LINGER)
        watch.close()
    finally:
        store.close()


# -- addresses and ports --------------------------------------------------------------------------


def local_address(text: str) -> str:
    """Return --local-addr as an IP address: a name is never advertised."""
    return _resolve("--local-addr", bare(text))[0]


def own_address(*, like: str = "") -> str:
    """Return the address from which packets leave this machine; nothing is sent.

    IPv6 only if `like` is an IPv6 address, or if the machine has nothing else.
    """
    first, second = ("2001:db8::1", "192.0.2.1") if ":" in like else ("192.0.2.1", "2001:db8::1")
    try:
        return towards(first, 9)
    except OSError:
        return _own_address(second, 9)


def _own_address(host: str, port: int) -> str:
    """Return this machine's address towards a host."""
    try:
        return towards(host, port)
    except OSError as error:
        raise EnvironmentFailure("this machine has no network route: give --local-addr") from error


def _addresses(asked: RendezvousConfig) -> dict[str, str]:
    """Return the IP address of each endpoint, at least of those that are this machine's.

    A pod that has just begun is known by its name before any name server knows its address, and
    the address that is found may be that of the pod before it.
    """
    if asked.await_names:
        mine = [each for each in asked.endpoints if is_named_here(_host(each))]
        return dict.fromkeys(mine, asked.near or own_address())
    found = {each: _resolve(asked.where, _host(each)) for each in asked.endpoints}
    return {  # of several, one of this machine is preferred
        each: next((one for one in several if is_free(one, 0)), several[0])
        for each, several in found.items()
    }


def is_named_here(host: str) -> bool:
    """Return whether the host is this machine by its name, with a domain or without one."""
    return host.partition(".")[0] == socket.gethostname().partition(".")[0]


def _resolve(where: str, host: str) -> list[str]:
    """Return the addresses of a host, IPv4 first."""
    try:
        found = resolve(host)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{where}: no address is known for {host}") from error
    if is_link_local(found[0]) and ":" in found[0] and "%" not in found[0]:
        told = f"{found[0]} is valid on one interface only: name it, as in {found[0]}%eth0"
        raise UsageError(f"{where}: {told}")
    return found


def _is_there(endpoint: str) -> bool:
    try:
        with socket.create_connection(split(endpoint), timeout=1.0):
            return True
    except OSError:
        return False


def _becomes_taken(address: str, port: int) -> bool:
    """Whether a process begins to listen there within a second."""
    give_up, pause = steady() + 1.0, threading.Event()
    while is_free(address, port):
        if steady() >= give_up:
            return False
        pause.wait(0.05)
    return True


def _host(endpoint: str) -> str:
    return split(endpoint)[0]


def _port(endpoint: str) -> int:
    return split(endpoint)[1]
