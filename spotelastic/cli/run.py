"""`spotelastic run`: a script, elastically, on machines that are already there.

argparse rather than typer: everything after the script belongs to the script, as with torchrun.
"""

import argparse
import os
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.job import Settings
from spotelastic.model.round import Schedule

PREFIX = "spotelastic-run-"
"""Of folders, followed by the pid of the run that they belong to."""
SHARED_MEMORY = Path("/dev/shm")

EXAMPLES = """\
examples:
  spotelastic run --standalone train.py --epochs 3
  spotelastic run --nnodes 2:4 --rdzv-endpoint a:2379,b:2379,c:2379 --rdzv-id job7 train.py
"""


def main(args: Sequence[str]) -> int:
    """Run this machine's node until the job ends; the exit code."""
    options = _parser().parse_args(args)
    settings = _settings(options)
    endpoints = tuple(_endpoints(options.rdzv_endpoint))
    script = Path(options.script)
    if not script.is_file():
        raise UsageError(f"no such script: {options.script}")
    _sweep()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        return _run(options, settings, endpoints, Path(folder))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spotelastic run",
        description="Run a script elastically on machines you already have, as torchrun does.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--nnodes", default="1:1", metavar="N|MIN:MAX", help="nodes of the job (1:1)")
    add("--nproc-per-node", type=int, default=1, metavar="N", help="workers on each node (1)")
    add("--rdzv-endpoint", default="", metavar="HOST:PORT,…", help="etcd members to meet at")
    add("--rdzv-id", default="default", metavar="ID", help="name of the job (default)")
    add("--standalone", action="store_true", help="start an etcd for this node alone")
    add("--max-restarts", type=int, default=3, metavar="N", help="failures of the script (3)")
    add("--node-id", default="", metavar="ID", help="name of this node (from the host)")
    add("--local-addr", default="", metavar="IP", help="address of this node")
    add("--zone", default="", help="availability zone of this node")
    add("--log-dir", default="", metavar="DIR", help="keep workers' logs here")
    add("--storage", default="", metavar="URL", help="where checkpoints go (./checkpoints/ID)")
    add("--snapshot-every", type=int, default=10, metavar="STEPS", help="into memory (10)")
    add("--checkpoint-every", type=int, default=50, metavar="STEPS", help="into storage (50)")
    add("--take-over", action="store_true", help="continue checkpoints of another run")
    add("script", help="path of a Python script")
    add("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    low, _, high = options.nnodes.partition(":")
    try:
        min_nodes, max_nodes = int(low), int(high or low)
    except ValueError:
        raise UsageError(f"--nnodes {options.nnodes}: give a number or MIN:MAX") from None
    if not 1 <= min_nodes <= max_nodes:
        raise UsageError(f"--nnodes {options.nnodes}: needs 1 ≤ MIN ≤ MAX")
    if options.nproc_per_node < 1:
        raise UsageError(f"--nproc-per-node {options.nproc_per_node}: needs at least 1")
    if not options.standalone and not options.rdzv_endpoint:
        if max_nodes > 1:
            raise UsageError("--rdzv-endpoint is missing: where the nodes meet (host:port of etcd)")
        options.standalone = True
    return Settings(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        workers=options.nproc_per_node,
        max_restarts=options.max_restarts,
        schedule=Schedule(options.snapshot_every, options.checkpoint_every),
    )


def _run(
    options: argparse.Namespace, settings: Settings, endpoints: tuple[str, ...], folder: Path
) -> int:
    from spotelastic.agent.config import AgentConfig
    from spotelastic.agent.run import run
    from spotelastic.store.server import standalone

    address = options.local_addr or ("127.0.0.1" if options.standalone else _own_address())
    node = options.node_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}"
    shm = SHARED_MEMORY / f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:12]}"
    state = Path(options.log_dir).absolute() / node if options.log_dir else folder / "state"
    storage = options.storage or str(Path("checkpoints").absolute() / options.rdzv_id)
    etcd = standalone(folder / "etcd") if options.standalone else None
    config = AgentConfig(
        run=options.rdzv_id,
        endpoints=(etcd.endpoint,) if etcd else endpoints,
        node=node,
        address=address,
        zone=options.zone,
        settings=settings,
        command=(str(Path(options.script).absolute()), *options.args),
        workdir=Path.cwd(),
        state=state,
        shm=shm,
        storage=storage,
        take_over=options.take_over,
        say=_say,
        line=_print_line,
    )
    try:
        return run(config)
    finally:
        if etcd is not None:
            etcd.stop()
        shutil.rmtree(shm, ignore_errors=True)


def _sweep() -> None:
    """Remove what runs left that were killed before they could clean up, their daemons too."""
    commands = [_command(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    for parent in (Path(tempfile.gettempdir()), SHARED_MEMORY):
        for folder in parent.glob(f"{PREFIX}*"):
            pid = folder.name.removeprefix(PREFIX).partition("-")[0]
            in_use = any(str(folder).encode() in command for command in commands)
            if not Path("/proc", pid).exists() and not in_use:
                shutil.rmtree(folder, ignore_errors=True)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def _endpoints(text: str) -> list[str]:
    endpoints = []
    for part in text.split(",") if text else ():
        host, _, port = part.partition(":")
        if "://" in part or not host or (port and not port.isdigit()):
            raise UsageError(f"--rdzv-endpoint {part}: give HOST:PORT, several with commas")
        endpoints.append(f"{host}:{port or 29400}")
    return endpoints


def _own_address() -> str:
    """The address that packets to the outside leave from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError as error:
            raise EnvironmentFailure("this machine has no route: give --local-addr") from error


def _say(line: str) -> None:
    print(f"[spotelastic] {line}", file=sys.stderr, flush=True)


def _print_line(rank: int, line: str) -> None:
    print(f"[{rank}] {line}", flush=True)
