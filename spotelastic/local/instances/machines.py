"""Emulates EC2 instances as groups of processes: launches, interrupts and terminates them.

States are EC2's own: pending -> running -> shutting-down -> terminated; none is ever stopped.
An instance that is shutting down has lost all its processes before it is terminated. Everything
here runs under the cloud's lock, except `read`, which the metadata service calls.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from spotelastic.clock import wall
from spotelastic.local.base import eventbridge_messages as events
from spotelastic.local.base.agenda import Agenda
from spotelastic.local.instances import metadata
from spotelastic.local.instances.imds import MetadataServer
from spotelastic.local.instances.metadata import Facts, Notices, RoleCredentials
from spotelastic.local.instances.power import Power
from spotelastic.local.instances.spot_market import SpotMarket

PENDING, RUNNING, SHUTTING_DOWN, TERMINATED = "pending", "running", "shutting-down", "terminated"
_CODES = {PENDING: 0, RUNNING: 16, SHUTTING_DOWN: 32, TERMINATED: 48}
GONE = (SHUTTING_DOWN, TERMINATED)

_CREDENTIALS = timedelta(hours=6)
_RENEW_BEFORE = timedelta(minutes=30)
_SETTLE = 30.0  # seconds that ending the processes of an instance may take


@dataclass(slots=True)
class LocalInstance:
    """An instance; `it` is moto's object."""

    it: Any
    own_interfaces: tuple[str, ...]
    """Network interfaces that were created, and are deleted, with the instance."""
    notices: Notices = field(default_factory=Notices)
    target_state: str = ""
    credentials: RoleCredentials | None = None
    off: Future[None] | None = None

    @property
    def id(self) -> str:
        """The instance's id."""
        return str(self.it.id)

    @property
    def state(self) -> str:
        """The instance's state, in EC2's words."""
        return str(self.it._state.name)

    @property
    def spot(self) -> bool:
        """Whether it is a spot instance."""
        return bool(self.it.lifecycle == "spot")

    @property
    def address(self) -> str:
        """The private address."""
        return str(self.it.private_ip)


class LocalInstances:
    """All instances of the cloud; implements `imds.Documents`."""

    def __init__(
        self,
        *,
        agenda: Agenda,
        power: Power,
        market: SpotMarket,
        imds_port: int,
        emit: Callable[[events.BusEvent], None],
    ) -> None:
        self._agenda = agenda
        self._power = power
        self._market = market
        self._port = imds_port
        self._emit = emit
        self._machines: dict[str, LocalInstance] = {}
        self._imds = MetadataServer(self, imds_port)
        self.changed: Callable[[LocalInstance], None] = lambda machine: None
        """Called with every instance whose state has changed."""

    def start(self) -> None:
        """Start the metadata services."""
        self._imds.start()

    def close(self) -> None:
        """Stop the metadata services."""
        self._imds.close()

    def get(self, instance: str) -> LocalInstance | None:
        """Return the instance of that id, or None."""
        return self._machines.get(instance)

    def running(self, without: tuple[str, str]) -> list[str]:
        """Return the ids of running instances, but of those with this tag (key and value)."""
        key, value = without
        return [
            machine.id
            for machine in self._machines.values()
            if machine.state in (PENDING, RUNNING) and _tags(machine.it).get(key) != value
        ]

    def free(self, type: str, zone: str) -> float:
        """Return how many more instances of the type fit into the zone."""
        used = sum(
            machine.it.instance_type == type
            and machine.it.availability_zone == zone
            and machine.state in (PENDING, RUNNING, SHUTTING_DOWN)
            for machine in self._machines.values()
        )
        return self._market.free(type, zone, used)

    # -- what EC2 does -----------------------------------------------------------------------

    def add(self, instance: Any, own_interfaces: Iterable[str]) -> None:
        """Start a new instance. Raises `OSError` if its address cannot be bound."""
        machine = LocalInstance(instance, tuple(own_interfaces))
        self._imds.open(machine.id, machine.address)
        self._machines[machine.id] = machine
        self._switch_on(machine)

    def terminate(self, instance: Any, code: str = "Client.UserInitiatedShutdown") -> None:
        """Terminate an instance; `code` is the state reason that EC2 shows.

        It shuts down in order if somebody asked for that, and else has a power cut: on EC2 that may
        happen to one whose notice is over, and is what must do no harm.
        """
        machine = self._machines[instance.id]
        if machine.state in (SHUTTING_DOWN, TERMINATED):
            return
        instance.state_reason.code = instance.state_reason.message = code
        self._switch_off(machine, cut=not code.startswith("Client"))

    def shut_down(self, instance: str) -> None:
        """Handle a shutdown from within. EC2 may stop such an instance; its group ends it then."""
        self.terminate(self._machines[instance].it, "Client.InstanceInitiatedShutdown")

    def settle(self, instances: Iterable[Any]) -> None:
        """Cut off instances that are shutting down, and wait until they are gone.

        Deleting a stack does the same.
        """
        for instance in instances:
            machine = self._machines[instance.id]
            if machine.off is not None:
                self._power.hasten(machine.id)  # it may wait for what the lock keeps from it
                machine.off.result(_SETTLE)
                self._is_off(machine)
                self._release(machine)

    # -- what befalls instances --------------------------------------------------------------

    def interrupt(self, machine: LocalInstance, seconds: float) -> None:
        """Give notice, with any number of seconds, and take the instance away after it."""
        if machine.state not in (PENDING, RUNNING):
            return
        machine.notices.interruption = end = wall() + seconds
        self._tell(machine, events.INTERRUPTION, **{"instance-action": "terminate"})
        self._agenda.at(end, partial(self._take_away, machine, end))

    def _take_away(self, machine: LocalInstance, end: float) -> None:
        if machine.notices.interruption == end:
            self.terminate(machine.it, "Server.SpotInstanceTermination")

    def recommend_rebalance(self, machine: LocalInstance) -> None:
        """Send the instance a rebalance recommendation."""
        machine.notices.rebalance = wall()
        self._tell(machine, events.REBALANCE)

    # -- switching ---------------------------------------------------------------------------

    def _switch_on(self, machine: LocalInstance) -> None:
        self._set_state(machine, PENDING)
        self._boot(machine)

    def _boot(self, machine: LocalInstance) -> None:
        """Start the instance's processes, unless it has been ended since."""
        if machine.state in (PENDING, RUNNING):
            future = self._power.on(machine.id, self._endpoint(machine))
            self._agenda.after(future, partial(self._is_on, machine))

    def _endpoint(self, machine: LocalInstance) -> dict[str, str]:
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{machine.address}:{self._port}"}

    def _is_on(self, machine: LocalInstance) -> None:
        if machine.state == PENDING:
            self._set_state(machine, RUNNING)

    def _switch_off(self, machine: LocalInstance, *, cut: bool) -> None:
        self._set_state(machine, SHUTTING_DOWN)
        machine.off = (self._power.off if cut else self._power.shut_down)(machine.id)
        self._agenda.after(machine.off, partial(self._is_off, machine))

    def _is_off(self, machine: LocalInstance) -> None:
        if machine.state == SHUTTING_DOWN:
            self._imds.close_address(machine.address)
            self._release(machine)
            self._set_state(machine, TERMINATED)

    def _release(self, machine: LocalInstance) -> None:
        """Release volumes, interfaces and the role, as EC2 does after a termination. Idempotent."""
        instance, backend = machine.it, machine.it.ec2_backend
        instance.teardown_defaults()
        for interface in list(instance.nics.values()):
            instance.detach_eni(interface)
            if interface.id in machine.own_interfaces or interface.delete_on_termination:
                interface.delete()
        if association := backend.iam_instance_profile_associations.get(machine.id):
            backend.disassociate_iam_instance_profile(association.association_id)

    def _set_state(self, machine: LocalInstance, state: str) -> None:
        machine.it._state.name = state
        machine.it._state.code = _CODES[state]
        self._tell(machine, events.STATE, state=state)
        self.changed(machine)

    def _tell(self, machine: LocalInstance, type: str, **detail: str) -> None:
        self._emit(events.of_instance(type, machine.it.region_name, machine.id, **detail))

    # -- the metadata service ----------------------------------------------------------------

    def read(self, instance: str, path: str) -> str | None:
        """Return a document of the instance's metadata service, or None."""
        machine = self._machines.get(instance)
        return metadata.read(self._facts(machine), path) if machine else None

    def _facts(self, machine: LocalInstance) -> Facts:
        instance = machine.it
        shows_tags = str(instance.metadata_options.instance_metadata_tags) == "enabled"
        return Facts(
            instance=machine.id,
            account=instance.owner_id,
            region=instance.region_name,
            zone=instance.availability_zone,
            type=instance.instance_type,
            address=machine.address,
            life_cycle="spot" if machine.spot else "on-demand",
            image=instance.image_id or "",
            target_state=machine.target_state,
            tags=_tags(instance) if shows_tags else None,
            user_data=_text(instance.user_data),
            notices=machine.notices,
            credentials=partial(_credentials, machine),
        )


def _tags(instance: Any) -> Mapping[str, str]:
    """Return the tags that the metadata service can show: keys without slashes and spaces."""
    tags = dict(instance.ec2_backend.tags.get(instance.id, {}))
    return {key: value for key, value in tags.items() if not set(key) & set("/ ")}


def _text(user_data: Any) -> str:
    return base64.b64decode(str(user_data)).decode(errors="replace") if user_data else ""


def _credentials(machine: LocalInstance) -> RoleCredentials | None:
    """Return temporary credentials of the instance profile's role, renewed before they expire."""
    now = datetime.now(UTC)
    if machine.credentials and machine.credentials.expires - now > _RENEW_BEFORE:
        return machine.credentials
    backend = machine.it.ec2_backend
    association = backend.iam_instance_profile_associations.get(machine.id)
    if association is None or not association.iam_instance_profile.roles:
        return None
    from moto.sts.models import sts_backends

    role = association.iam_instance_profile.roles[0]
    assumed = sts_backends[backend.account_id]["aws"].assume_role(
        region_name=backend.region_name,
        role_session_name=machine.id,
        role_arn=role.arn,
        policy="",
        duration=int(_CREDENTIALS.total_seconds()),
        external_id="",
    )
    machine.credentials = RoleCredentials(
        role=role.name,
        key=assumed.access_key_id,
        secret=assumed.secret_access_key,
        token=assumed.session_token,
        issued=now,
        expires=now + _CREDENTIALS,
    )
    return machine.credentials
