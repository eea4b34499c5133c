"""Assembles the local cloud's process: moto, its patches, instances, groups, faults and users."""

import contextlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock, Thread
from typing import Any

from spotelastic.aws.base.identity import CLUSTER, ROLE
from spotelastic.clock import wall
from spotelastic.local import admission, cloud, fault_client
from spotelastic.local.admission import AccessKey
from spotelastic.local.autoscaling import pricing
from spotelastic.local.base import callers, eventbridge_messages
from spotelastic.local.base.agenda import Agenda
from spotelastic.local.base.eventbridge_messages import BusEvent
from spotelastic.local.base.remains import Remains
from spotelastic.local.cloud import ACCOUNT, REGIONS
from spotelastic.local.instances.machines import LocalInstances
from spotelastic.local.instances.power import SHUTS_DOWN_WITHIN, Power
from spotelastic.local.instances.spot_market import SpotMarket
from spotelastic.local.users import Users


@dataclass(frozen=True, slots=True)
class Config:
    """What a cloud is started with."""

    remains: Remains
    net: str
    imds_port: int
    buckets: Path
    """Folder in which S3's objects are stored."""
    logs: Path
    """Folder in which the lines of log groups are stored."""
    boot_command: tuple[str, ...]


class Server:
    """All parts of the process. Created, started and closed by `__main__`."""

    def __init__(self, config: Config, lost: Callable[[], None]) -> None:
        """`lost` is called when the hypervisor is gone: without it there is no cloud."""
        prepare_environment(config)
        # moto reads its environment at import
        from moto.autoscaling.models import autoscaling_backends

        from spotelastic.local import moto_patches
        from spotelastic.local.autoscaling import groups
        from spotelastic.local.autoscaling.regional_groups import RegionalScaling

        lock = RLock()
        self._config = config
        self._users: Users | None = None
        market = SpotMarket()
        self._agenda = Agenda(lock)
        self._web = _listening()
        self._address = f"127.0.0.1:{self._web.server_port}"
        self.endpoint = f"http://{self._address}"
        self.secret = secrets.token_urlsafe(30)
        self._power = Power(
            config.remains, config.boot_command, _instance_environment(self.endpoint)
        )
        self._power.on_lost = lost
        self._power.on_shut_down = lambda instance: self._agenda.soon(
            partial(self._machines.shut_down, instance)
        )
        self._machines = LocalInstances(
            agenda=self._agenda,
            power=self._power,
            market=market,
            imds_port=config.imds_port,
            emit=self._emit,
        )
        made = partial(
            groups.AutoScaling,
            machines=self._machines,
            market=market,
            agenda=self._agenda,
            emit=self._emit,
        )
        scaling = RegionalScaling(
            {each: made(backend=autoscaling_backends[ACCOUNT][each]) for each in REGIONS}
        )
        self._machines.changed = scaling.machine_changed
        moto_patches.install(
            lock=lock,
            agenda=self._agenda,
            machines=self._machines,
            scaling=scaling,
            market=market,
            power=self._power,
            volumes=Path(config.remains.folder, "volumes"),
            buckets_folder=config.buckets,
            logs_folder=config.logs,
            stack_deleted=self._look,
        )
        self._priced = partial(pricing.middleware, market)
        self._desk = fault_client.Desk(
            lock=lock,
            machines=self._machines,
            scaling=scaling,
            market=market,
            cloud=config.remains.cloud,
        )

    def start(self) -> None:
        """Start timers, hypervisor and metadata services, and serve faults and prices."""
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        moto = DomainDispatcherApplication(create_backend_app)
        known = admission.known_keys(ACCOUNT, AccessKey(self.secret))
        served = fault_client.middleware(self._desk, self._answering(moto))
        self._web.app = admission.middleware(self._address, known, served)
        Thread(target=self._web.serve_forever, name="aws", daemon=True).start()
        self._agenda.start()
        self._power.start()
        self._machines.start()

    def _answering(self, moto: Callable[..., Any]) -> Callable[..., Any]:
        """Return the WSGI application that answers for AWS."""
        return self._priced(moto)

    def _emit(self, event: BusEvent) -> None:
        self._deliver(event, wall())

    def _deliver(self, event: BusEvent, at: float) -> None:
        """Deliver an event to EventBridge that happened at that time."""
        from moto.events.models import events_backends

        backend = events_backends[ACCOUNT][event.region or REGIONS[0]]
        eventbridge_messages.put(backend, event, at)

    def serve_users(self, over: Callable[[], None], first: Sequence[socket.socket]) -> None:
        """Admit commands from now on.

        With a `first` command the cloud ends with its last user; `over` is called then.
        """
        self._users = Users(
            self._config.remains.cloud,
            clusters=partial(_clusters, REGIONS),
            take_down=self._take_down,
            over=over,
            ends_unused=bool(first),
        )
        self._users.start(first)

    def _look(self) -> None:
        if self._users is not None:
            self._users.look()

    def _take_down(self, name: str, say: Callable[[str], None]) -> None:
        """Take a cluster down through the cloud's own endpoint."""
        from spotelastic.aws.base.clients import Aws
        from spotelastic.aws.clusters import teardown

        its = [region for region in REGIONS if name in _clusters((region,))]
        os.environ.update(cloud.credentials(self.endpoint, REGIONS[0], self.secret))
        for region in its or REGIONS[:1]:
            teardown.delete(name, say=say, aws=Aws(region))

    def close(self) -> None:
        """Shut all instances down, stop all parts, and remove what the cloud has on the machine.

        Workers go first: nodes agree on their last save through the control nodes.
        """
        self._agenda.close()
        workers = self._machines.running(without=(ROLE, "control"))
        with contextlib.suppress(OSError):  # the hypervisor may be gone, and the instances with it
            if self._power.is_on:
                leaving = [self._power.shut_down(worker) for worker in workers]
                wait(leaving, timeout=2 * SHUTS_DOWN_WITHIN)
        self._power.close()
        self._machines.close()


def _listening() -> Any:
    """Return the server of AWS's API on a free port; it answers nothing before `start`.

    From other users of the machine it does not read a byte.
    """
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import make_server

    server: Any = make_server(
        "127.0.0.1", 0, lambda *_: [], threaded=True, request_handler=MotoRequestHandler
    )
    server.verify_request = lambda asked, caller: callers.are_ours(caller, asked.getsockname())
    return server


def _clusters(regions: Sequence[str]) -> frozenset[str]:
    """Return the clusters that have a stack or a group.

    Takes no lock: a deletion may be in progress.
    """
    from moto.autoscaling.models import autoscaling_backends
    from moto.cloudformation.models import cloudformation_backends

    made = [cloudformation_backends[ACCOUNT][region] for region in regions]
    scaled = [autoscaling_backends[ACCOUNT][region] for region in regions]
    stacks = [stack for each in made for stack in list(each.stacks.values())]
    groups = [group for each in scaled for group in list(each.autoscaling_groups.values())]
    named = [stack.tags.get(CLUSTER) for stack in stacks]
    named += [tag["Value"] for group in groups for tag in group.tags if tag["Key"] == CLUSTER]
    return frozenset(name for name in named if name)


def prepare_environment(config: Config) -> None:
    """Set what moto reads in the environment as it is imported."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    temporary = Path(config.remains.folder, "tmp")
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)  # moto puts large S3 objects there
    os.environ["MOTO_ACCOUNT_ID"] = ACCOUNT
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # images.py has those that nodes need
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"
    os.environ["AWS_DEFAULT_REGION"] = REGIONS[0]


def _instance_environment(endpoint: str) -> dict[str, str]:
    """Return a clean environment: nothing of the user's must reach an instance."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin:/usr/bin:/bin"]),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "AWS_ENDPOINT_URL": endpoint,
    }
