"""Validates the options of `spotelastic run` and converts them into settings.

A mistake is told in one line.

Looks at this machine's files and modules, and starts nothing. The rendezvous options are in
`rendezvous_config.py`.
"""

import argparse
import hashlib
import importlib.util
import ipaddress
import os
import pkgutil
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from string import Template

from spotelastic import validation
from spotelastic.agent.config import Entry, HealthChecks
from spotelastic.agent.health import efa, kernel_log
from spotelastic.agent.workers.output import Output, Selection
from spotelastic.errors import UsageError
from spotelastic.launcher import devices
from spotelastic.launcher.rendezvous_config import is_static
from spotelastic.model.job import RankPolicy, Settings

PREFIX = "[${rank}] "
LAST_PORT = 65535
TEE_PREFIX = "[${role_name}${local_rank}]:"


def metrics(options: argparse.Namespace) -> tuple[str, int] | None:
    """Return the address and the port at which metrics are served; None: they are not.

    Nothing but this machine reaches them unless an address is named.
    """
    text = options.metrics_port
    if not text:
        return None
    host, _, port = text.rpartition(":")
    wrong = f"--metrics-port {text}: give a port, or the IP address of one of this machine's"
    try:
        address = ipaddress.ip_address(host.strip("[]") or "127.0.0.1")
    except ValueError:
        raise UsageError(f"{wrong} networks before it: 9464, 10.0.0.5:9464") from None
    if address.is_unspecified:
        raise UsageError(f"{wrong} networks before it: {host} is all of them, the internet, too")
    if not (port.isdecimal() and 0 < int(port) <= LAST_PORT):
        raise UsageError(f"--metrics-port {text}: a port is a number from 1 to {LAST_PORT}")
    return str(address), int(port)


def sizes(nnodes: str) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes."""
    low, _, high = nnodes.partition(":")
    try:
        smallest, largest = int(low), int(high or low)
    except ValueError:
        raise UsageError(f"--nnodes {nnodes}: give a number or MIN:MAX") from None
    if not 1 <= smallest <= largest:
        raise UsageError(f"--nnodes {nnodes}: needs 1 ≤ MIN ≤ MAX")
    return smallest, largest


def rank_policy(options: argparse.Namespace) -> RankPolicy:
    """Return how ranks are assigned.

    torchrun's static rendezvous takes the node rank as the group rank; its other ones ignore it.
    """
    return options.rank_policy or ("pinned" if is_static(options) else "stable")


def node_rank(options: argparse.Namespace) -> int | None:
    """Return the rank that this node asks for; None if ranks are not pinned.

    For static it is 0 by default, as in torchrun.
    """
    if rank_policy(options) == "stable":
        return None
    rank = 0 if options.node_rank is None and is_static(options) else options.node_rank
    _, largest = sizes(options.nnodes)
    if rank is not None and not 0 <= rank < largest:
        raise UsageError(f"--node-rank {rank}: needs to be from 0 to {largest - 1}")
    return rank


def settings(options: argparse.Namespace) -> Settings:
    """Return the job's settings."""
    smallest, largest = sizes(options.nnodes)
    validation.not_negative(
        max_restarts=options.max_restarts,
        exit_barrier_timeout=options.exit_barrier_timeout,
        stall_timeout=options.stall_timeout,
        keep_every=options.keep_every,
        grace_period=options.grace_period,
    )
    validation.at_least_one(keep_last=options.keep_last)
    return Settings(
        min_nodes=smallest,
        max_nodes=largest,
        workers=devices.workers(options.nproc_per_node or "1"),
        max_restarts=options.max_restarts,
        gang=options.gang,
        rank_policy=rank_policy(options),
        stall_timeout=options.stall_timeout,
        exit_barrier=options.exit_barrier_timeout,
        snapshot_every=validation.interval("--snapshot-every", options.snapshot_every),
        checkpoint_every=validation.interval("--checkpoint-every", options.checkpoint_every),
        keep_last=options.keep_last,
        keep_every=options.keep_every,
        outputs=validation.outputs(options.output, Path.cwd()),
        replicate=validation.replication(options.replicate),
        rehearse=options.rehearse,
        exact=options.exact,
        guard=options.guard,
        audit=validation.audit(options.audit),
    )


def command(
    options: argparse.Namespace, folder: Path, environ: Mapping[str, str]
) -> tuple[Entry, tuple[str, ...]]:
    """Return what a worker runs. Raises `UsageError` if it does not exist."""
    name, args = options.script, options.args
    if options.run_path:
        _find_script(name, folder)
        return "path", (name, *args)
    if options.no_python:
        if options.module:
            raise UsageError("--no-python and --module: give one of them")
        return "program", (_program(name, folder, environ), *args)
    if options.module:
        _find_module(name, folder, environ)
    else:
        _find_script(name, folder)
    interpreter = environ.get("PYTHON_EXEC")
    if interpreter:
        module = ("-m",) if options.module else ()
        return "program", (_program(interpreter, folder, environ), "-u", *module, name, *args)
    if not options.module:
        _parse(folder / name, name)
    return ("module" if options.module else "script"), (name, *args)


def _find_script(name: str, folder: Path) -> None:
    """Check that the script is a file, or a folder or archive that `python` would run."""
    path = folder / name
    if not path.exists():
        raise UsageError(f"no such script: {name}")
    if _holds_modules(path) and PathFinder.find_spec("__main__", [str(path)]) is None:
        what = "a folder" if path.is_dir() else "an archive"
        raise UsageError(f"{name} is {what} without a __main__.py, not a script")


def _holds_modules(path: Path) -> bool:
    return pkgutil.get_importer(str(path)) is not None


def _parse(path: Path, name: str) -> None:
    """Check that a source file is valid Python; a compiled one was parsed before."""
    if _holds_modules(path) or not path.is_file():
        return
    with path.open("rb") as file:
        begin = file.read(len(MAGIC_NUMBER))
    if path.suffix == ".pyc" and begin != MAGIC_NUMBER:
        raise UsageError(f"{name} was compiled by another version of Python: compile it again")
    if begin != MAGIC_NUMBER:
        validation.parses(path, name)


def _program(name: str, folder: Path, environ: Mapping[str, str]) -> str:
    named = str(folder / name) if os.sep in name else name
    found = shutil.which(named, path=environ.get("PATH"))
    if found is None:
        raise UsageError(f"--no-python {name}: no such program, or it is not executable")
    return found


def _find_module(name: str, folder: Path, environ: Mapping[str, str]) -> None:
    """Find a module as `python -m` would, without importing the packages that contain it.

    The name need not be one that `import` accepts, e.g. `-m my-tool`.
    """
    first, *inner = name.split(".")
    if not all((first, *inner)):
        raise UsageError(f"--module {name}: not the name of a module")
    here = [] if environ.get("PYTHONSAFEPATH") else [str(folder)]
    spec = PathFinder.find_spec(first, here) or _installed(first)
    full = first
    for part in inner:
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, _locations(spec))
        if spec is None:
            hint = f"; try {name.removesuffix('.py')}" if part == "py" else ""
            raise UsageError(f"--module {name}: there is no module {full}{hint}")
    if spec is None:
        raise UsageError(f"--module {name}: there is no module {full}")
    inside = _locations(spec)
    if inside and PathFinder.find_spec(f"{full}.__main__", inside) is None:
        raise UsageError(f"--module {name}: {full} is a package without a __main__ module")


def _installed(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # raised for __main__
        return None


def _locations(spec: object) -> Sequence[str]:
    """Return the folders of a package's modules; empty for anything else."""
    return list(getattr(spec, "submodule_search_locations", None) or ())


def code(entry: Entry, command: Sequence[str]) -> str:
    """Return the script's hash, by which nodes with different versions refuse each other.

    Empty if there is no file to hash: for a module, a program or a folder.
    """
    path = Path(command[0])
    if entry not in ("script", "path") or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def output(options: argparse.Namespace) -> Output:
    """Return where the output of workers goes."""
    filters = {
        "stdout": tuple(options.duplicate_stdout_filters),
        "stderr": tuple(options.duplicate_stderr_filters),
    }
    return Output(
        redirects=_selection("--redirects", options.redirects),
        tee=_selection("--tee", options.tee),
        shown=_ranks(options.local_ranks_filter),
        filters=filters,
    )


def _selection(flag: str, text: str) -> Selection:
    if re.fullmatch("[0-3]?", text):
        return Selection(int(text or 0))
    if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        raise UsageError(f"{flag} {text}: give 0, 1, 2 or 3, or RANK:N with commas")
    pairs = (part.split(":") for part in text.split(","))
    return Selection(ranks={int(rank): int(streams) for rank, streams in pairs})


def _ranks(text: str) -> frozenset[int] | None:
    if not text:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UsageError(f"--local-ranks-filter {text}: give numbers with commas")
    return frozenset(map(int, text.split(",")))


def signals(text: str) -> tuple[int, ...]:
    """Parse `--signals-to-handle`."""
    found = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise UsageError(f"--signals-to-handle {name}: not a signal that can be handled")
        found.append(signal.Signals[name])
    return tuple(found)


def grace(options: argparse.Namespace, environ: Mapping[str, str]) -> float:
    """Return the seconds between SIGTERM and SIGKILL for a worker."""
    if options.shutdown_timeout is not None:
        return float(options.shutdown_timeout)
    variable = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "10")
    try:
        return float(variable)
    except ValueError:
        raise UsageError(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={variable}: not a number") from None


def preload(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the modules that workers find already imported."""
    if options.preload and options.no_warm:
        raise UsageError(
            f"--preload {','.join(options.preload)}: has no effect with --no-warm, which imports "
            "everything in each worker; remove one of the two"
        )
    return tuple(options.preload)


def check_devices(options: argparse.Namespace, workers: int, environ: Mapping[str, str]) -> None:
    """Check the options that need a GPU for each worker."""
    if options.numa_binding:
        if devices.gpus() < workers:
            raise UsageError(f"--numa-binding {options.numa_binding}: needs a GPU for each worker")
        if shutil.which("numactl") is None:
            raise UsageError(f"--numa-binding {options.numa_binding}: numactl is not installed")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if options.virtual_local_rank and visible is not None and len(visible.split(",")) < workers:
        raise UsageError(
            f"--virtual-local-rank: {workers} workers, but CUDA_VISIBLE_DEVICES={visible}"
        )


def health_checks(
    options: argparse.Namespace, drivers: Sequence[Path] = devices.DRIVERS
) -> HealthChecks:
    """Return which of this machine's devices are checked. How many GPUs it has nobody promised."""
    network = efa.devices() > 0
    given = os.environ.get(kernel_log.VARIABLE)
    if options.no_gpu_check or not (given or any(driver.exists() for driver in drivers)):
        return HealthChecks(network=network)
    log = Path(given or kernel_log.PATH).absolute()
    return HealthChecks(gpus=True, network=network, kernel_log=log)


def prefix(options: argparse.Namespace, environ: Mapping[str, str]) -> Callable[[int, int], str]:
    """Return a function that makes the prefix of a shown line from its rank and local rank."""
    usual = TEE_PREFIX if options.tee.strip("0") else PREFIX
    template = Template(environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", usual))

    def of(rank: int, local_rank: int) -> str:
        values = {"rank": rank, "local_rank": local_rank, "role_name": options.role}
        return template.safe_substitute(values)

    return of
