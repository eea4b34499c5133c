"""Instances of the local cloud that fail as on AWS: some never start, and metadata services may
have trouble.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

from spotelastic.clock import wall
from spotelastic.local.instances.imds import MetadataServer
from spotelastic.local.instances.machines import (
    PENDING,
    SHUTTING_DOWN,
    LocalInstance,
    LocalInstances,
)

BROKEN = "Client.InternalError"
"""State reason of an instance that EC2 accepted and could not start."""

Trouble = Literal["none", "expired", "unavailable", "hangs"]
"""A fault of a metadata service: its tokens have expired; it answers 503; it does not answer."""


class TroubledMetadata(MetadataServer):
    """Metadata services that may have trouble."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._troubles: dict[str, Trouble] = {}
        """By instance."""
        self._changed = asyncio.Event()
        """Set and replaced when a trouble changes, or a service ends."""

    def set_trouble(self, address: str, trouble: Trouble) -> None:
        """Set the trouble of an address's service."""
        self._run(self._set_trouble(address, trouble))

    async def _set_trouble(self, address: str, trouble: Trouble) -> None:
        service = self._services[address]
        self._troubles[service.instance] = trouble
        self._end_waits()
        if trouble == "expired":
            service.tokens.clear()

    def _end_waits(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _close(self, address: str) -> None:
        self._end_waits()
        await super()._close(address)

    async def _answer(self, service: Any, *request: Any) -> Any:
        trouble = self._troubles.get(service.instance)
        if trouble == "hangs":
            await self._changed.wait()
            raise EOFError
        if trouble == "unavailable":
            return HTTPStatus.SERVICE_UNAVAILABLE, "", {}
        return await super()._answer(service, *request)


class StrictInstances(LocalInstances):
    """Instances of which EC2 finds out that it cannot start them."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.gone_at: dict[str, float] = {}
        """When EC2 began to end an instance."""
        self._startable = True

    @contextmanager
    def starting(self, startable: bool) -> Iterator[None]:
        """Instances that are launched in this block can be started, or cannot."""
        self._startable = startable
        try:
            yield
        finally:
            self._startable = True

    def bought(self, *states: str) -> list[tuple[str, bool]]:
        """The type of each instance in one of the states, and whether it is a spot instance."""
        machines = [each for each in self._machines.values() if each.state in states]
        return [(str(each.it.instance_type), each.spot) for each in machines]

    def region_of(self, key: str) -> str | None:
        """Return the region of the instance that has this access key; None if none has it."""
        for machine in tuple(self._machines.values()):
            if machine.credentials is not None and machine.credentials.key == key:
                return str(machine.it.region_name)
        return None

    def set_metadata(self, machine: LocalInstance, trouble: Trouble) -> None:
        """Set the trouble of the instance's metadata service."""
        self._imds.set_trouble(machine.address, trouble)  # type: ignore[attr-defined]

    def _switch_on(self, machine: LocalInstance) -> None:
        if self._startable:
            super()._switch_on(machine)
            return
        self._set_state(machine, PENDING)
        self._agenda.soon(partial(self.terminate, machine.it, BROKEN))

    def _set_state(self, machine: LocalInstance, state: str) -> None:
        if state == SHUTTING_DOWN:
            self.gone_at[machine.id] = wall()
        super()._set_state(machine, state)
