"""What an instance runs when it starts, on EC2 and in the local cloud alike: `spotelastic boot`.

    spotelastic boot              reads who it is from IMDS, starts the parts of its role and
                                  restarts each that dies
      ├─ etcd                     control: the member whose address and disk it attaches
      ├─ spotelastic boot controller
      └─ spotelastic boot agent   worker: fetches the code and joins the job

The parent is small and has one thread that starts processes: they are bound to it.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic.agent.workers.process import name_process
from spotelastic.aws import member
from spotelastic.aws.clients import Aws, calling
from spotelastic.aws.identity import BUCKET, CLUSTER, MEMBER, ROLE, Identity, from_imds
from spotelastic.aws.imds import DEFAULT_URL
from spotelastic.aws.logs import LogShipper, stream
from spotelastic.aws.names import PEER_PORT, Names
from spotelastic.aws.objects import Objects
from spotelastic.aws.workdir import unpack
from spotelastic.cli.supervise import Part, Process, supervise
from spotelastic.clock import wall
from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import Event

if TYPE_CHECKING:
    from spotelastic.store.server import EtcdMember

TRY_AGAIN = 75
"""Exit code of a part that could not start yet (EX_TEMPFAIL)."""
SERVES_WITHIN = 60.0
"""Seconds that a restarted etcd member may take until it serves."""
RECORD_TIMEOUT = 10.0


def main(args: Sequence[str]) -> int:
    """`spotelastic boot [agent|controller]`; the exit code."""
    parts: Mapping[str, Callable[[], int]] = {"": boot, "agent": _agent, "controller": _controller}
    part = parts.get(" ".join(args))
    if part is None:
        raise UsageError("spotelastic boot takes no arguments: it is what instances run")
    return part()


def boot() -> int:
    """Runs this instance's role until it is done (worker) or told to end (control)."""
    name_process("se-boot")
    me = from_imds(_imds())
    say(f"{me.instance} in {me.zone}: {me.tag(ROLE)} of {me.tag(CLUSTER)}")
    return _control(me) if me.tag(ROLE) == "control" else _worker()


# -- control -------------------------------------------------------------------------------------


def _control(me: Identity) -> int:
    from spotelastic.store.server import EtcdMember, MemberConfig

    aws = Aws(me.region)
    spec = _job(aws, me)
    name = me.tag(MEMBER)
    folder = member.attach(aws, Names(spec.cluster), name, me, say)
    hosts = [endpoint.rpartition(":")[0] for endpoint in spec.etcd]
    addresses = dict(zip(spec.etcd_members, hosts, strict=True))
    etcd = EtcdMember(
        MemberConfig(
            name=name,
            data_dir=folder / "etcd",
            client=dict(zip(spec.etcd_members, spec.etcd, strict=True))[name],
            peer=f"{addresses[name]}:{PEER_PORT}",
            cluster={each: f"{host}:{PEER_PORT}" for each, host in addresses.items()},
            token=spec.cluster,
        ),
        log=_home() / "etcd.log",
    )

    def start_etcd() -> Process:
        etcd.start()
        return _Etcd(etcd)

    def came_back(died_at: float) -> None:
        """Tells the run about it, once the member serves again."""
        seen_at = wall()
        etcd.wait(SERVES_WITHIN)
        _record_outage(spec, me, name, died_at, seen_at)

    return supervise(
        (
            Part("etcd", start_etcd, restarted=came_back),
            Part("controller", partial(_start, "controller")),
        ),
        say,
    )


@dataclass(frozen=True, slots=True)
class _Etcd:
    """The member's process, as the supervisor knows processes."""

    member: "EtcdMember"

    @property
    def pid(self) -> int:
        return self.member.pid

    def wait(self) -> int:
        return self.member.join()


def _record_outage(
    spec: JobSpec, me: Identity, member: str, died_at: float, seen_at: float
) -> None:
    from spotelastic.rendezvous.membership import record
    from spotelastic.store.etcd import EtcdStore
    from spotelastic.store.keys import Keys

    back_at = wall()
    event = Event(
        died_at,
        "etcd",
        f"etcd member {member} on {me.instance} died and was back {back_at - died_at:.2f} s later",
        me.instance,
        {"at": died_at, "seen_at": seen_at, "back_at": back_at, "member": member},
    )
    store = EtcdStore(spec.etcd, timeout=RECORD_TIMEOUT)
    try:
        record(store, Keys(spec.run), event)
    finally:
        store.close()


def _controller() -> int:
    from spotelastic.controller.run import ControllerConfig, run

    name_process("se-controller")
    me = from_imds(_imds())
    spec = _job(Aws(me.region), me)
    return run(ControllerConfig(spec, me.tag(BUCKET), me.region, me.instance, me.address))


# -- worker --------------------------------------------------------------------------------------


def _worker() -> int:
    return supervise((Part("agent", partial(_start, "agent"), ends=_is_final),), say)


def _is_final(code: int) -> bool:
    """An agent that was killed, or could not start yet, is started again; others had their say."""
    return code >= 0 and code != TRY_AGAIN


def _agent() -> int:
    from spotelastic.agent.config import AgentConfig
    from spotelastic.agent.run import run

    try:
        me = from_imds(_imds())
        aws = Aws(me.region)
        spec = _job(aws, me)
        workdir = _code(aws, me, spec)
        token = _token(aws, spec)
        logs = LogShipper(aws, spec.log_group)
        config = AgentConfig(
            run=spec.run,
            endpoints=spec.etcd,
            node=me.instance,
            address=me.address,
            zone=me.zone,
            settings=spec.settings,
            command=(spec.script, *spec.args),
            workdir=workdir,
            state=_home() / "agent",
            shm=Path(os.environ.get("SPOTELASTIC_SHM") or f"/dev/shm/spotelastic-{spec.cluster}"),
            storage=spec.storage,
            imds=_imds(),
            spot=me.spot,
            code=spec.code,
            token=token,
            keep_daemon=True,
            say=say,
            line=lambda rank, text: logs.write(stream(me.instance, rank), text),
        )
        try:
            return run(config).code
        finally:
            logs.close()
    except (Unavailable, EnvironmentFailure) as error:
        say(str(error))
        return TRY_AGAIN


def _code(aws: Aws, me: Identity, spec: JobSpec) -> Path:
    """The folder with the job's code, fetched once and verified."""
    folder = _home() / "code" / spec.code[:16]
    if not folder.exists():
        data = Objects(aws, me.tag(BUCKET), spec.cluster).get(f"code/{spec.code}.tar.gz")
        if data is None:
            raise EnvironmentFailure(f"the bucket has no code {spec.code[:16]} for {spec.cluster}")
        unpack(data, spec.code, folder)
    return folder


def _token(aws: Aws, spec: JobSpec) -> str:
    name = Names(spec.cluster).token
    with calling(f"read the secret {name}"):
        answer = aws.ssm.get_parameter(Name=name, WithDecryption=True)
    return str(answer["Parameter"]["Value"])


# -- both ----------------------------------------------------------------------------------------


def _job(aws: Aws, me: Identity) -> JobSpec:
    spec = Objects(aws, me.tag(BUCKET), me.tag(CLUSTER)).job()
    if spec is None:
        raise EnvironmentFailure(f"the bucket has no job for the cluster {me.tag(CLUSTER)}")
    return spec


def _start(part: str) -> Process:
    """A part as a process of its own, of this very installation."""
    command = [sys.executable, "-m", "spotelastic", "boot", part]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _imds() -> str:
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", DEFAULT_URL).rstrip("/")


def _home() -> Path:
    """Short: sockets lie below it, and their paths are limited to 107 characters."""
    folder = Path.home() / ".se"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(line: str) -> None:
    print(f"boot: {line}", flush=True)
