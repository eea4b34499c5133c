"""Builds the environment variables of a worker: torchrun's, and our own (pure)."""

import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec
from spotelastic_checkpoints import addresses

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.workers.entries import modules_folder
from spotelastic.model.in_place import AUDIT, CUBLAS, EXACT, FIRST, GUARD, REHEARSE
from spotelastic.model.job import Settings
from spotelastic.model.protocol import PROTOCOL
from spotelastic.model.round import Member, Round

MEASUREMENTS = 6
"""How often the own time of a rank is measured until a node may be named as slow."""

NCCL_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
"""Names of the variable that tells torch what to do when a collective of NCCL fails."""
NCCL_NET = "NCCL_NET"
"""Variable that says over what NCCL talks to other nodes."""
NCCL_ERRORS = "SPOTELASTIC_NCCL_ERRORS"
"""Variable by which a worker knows that the user has not set those: then it looks after such errors
itself (`training/in_place/nccl.py`).
"""


def base(environ: Mapping[str, str], interface: str, workers: int) -> dict[str, str]:
    """Return the variables that the zygote and all workers share.

    `interface` has the node's address; empty if none has it.
    """
    env = dict(environ)
    if workers > 1:  # each would take all cores
        env.setdefault("OMP_NUM_THREADS", "1")
    if not env.keys() & set(NCCL_HANDLING):
        env[NCCL_ERRORS] = "1"
    env.setdefault(NCCL_HANDLING[0], "1")
    if interface:
        # gloo would look for one by the name of the host, which may lead to a link-local address.
        env.setdefault("GLOO_SOCKET_IFNAME", interface)
    return env


def worker(
    shared: Mapping[str, str],
    config: AgentConfig,
    settings: Settings,
    round_: Round,
    member: Member,
    local_rank: int,
    *,
    daemon: Path,
    control: Path,
    error_file: Path,
) -> dict[str, str]:
    """Return the variables of the worker with `local_rank` on `member`, in the started `round_`."""
    host, port = addresses.split(round_.store)
    asked = {name: _filled_in(value, host) for name, value in config.env.items()}
    rank = round_.first_rank(member.slot) + local_rank
    ours = {
        "RANK": rank,
        **_local(shared, local_rank, virtual=config.virtual_local_rank),
        "GROUP_RANK": member.slot,
        "ROLE_RANK": rank,
        "ROLE_NAME": config.role,
        "WORLD_SIZE": round_.world_size,
        "LOCAL_WORLD_SIZE": member.workers,
        "GROUP_WORLD_SIZE": len(round_.members),
        "ROLE_WORLD_SIZE": round_.world_size,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": len(round_.charged),
        "TORCHELASTIC_MAX_RESTARTS": settings.max_restarts,
        "TORCHELASTIC_RUN_ID": config.run,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signal.Signals(s).name for s in config.signals),
        # What a program starts may make its group before anything of ours is imported there.
        "SPOTELASTIC_CONTROL": control if config.entry != "program" else "",
        NCCL_ERRORS: "" if asked.keys() & set(NCCL_HANDLING) else shared.get(NCCL_ERRORS, ""),
        "SPOTELASTIC_DAEMON": daemon,
        "SPOTELASTIC_NODE": config.node,
        **_output(config),
        "SPOTELASTIC_PROTOCOL": PROTOCOL,
        "SPOTELASTIC_IN_PLACE": round_.in_place,
        "SPOTELASTIC_SAVE_AT_REST": "1" if _is_tight(round_, settings) else "",
        "SPOTELASTIC_ROUND": round_.incarnation,
        "SPOTELASTIC_RUN_ID": round_.run_id or round_.incarnation,
        "SPOTELASTIC_RESUME": msgspec.json.encode(round_.resume).decode(),
        "SPOTELASTIC_MEASURE_EVERY": settings.slow_after / MEASUREMENTS,
        GUARD: asked.get(GUARD) or ("1" if settings.guard else ""),
        AUDIT: asked.get(AUDIT) or settings.audit or "",
        REHEARSE: asked.get(REHEARSE) or settings.rehearse.replace(FIRST, "auto"),
        EXACT: "1" if settings.exact else "",
    }
    network = timing({**shared, **config.env}, settings)
    network |= {NCCL_NET: "Socket"} if without_efa(round_, efa=config.efa) else {}
    network |= dict([CUBLAS]) if settings.exact else {}
    return {**network, **shared, **asked, **{name: str(value) for name, value in ours.items()}}


def _output(config: AgentConfig) -> dict[str, object]:
    """Return the variable of the folder that a script may write into, so that it is kept."""
    outputs = config.settings.outputs
    return {"SPOTELASTIC_OUTPUT": config.workdir.absolute() / outputs[0]} if outputs else {}


def _is_tight(round_: Round, settings: Settings) -> bool:
    """Whether the loss of a node leaves too few nodes.

    The others then wait for one that has to restore exactly the step that they have.
    """
    return len(round_.members) <= settings.min_nodes and not settings.gang


def timing(variables: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return the variables with which NCCL's collectives are timed.

    A GPU's own time follows from these times.

    That costs two CUDA events for each collective. So it is left out unless slow nodes are to be
    replaced, and where kernels start in their order of launch: there it keeps collectives from
    running beside computation (pytorch issue 143890).
    """
    in_order = variables.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    return {"TORCH_NCCL_ENABLE_TIMING": "1"} if settings.replace_slow and not in_order else {}


def without_efa(round_: Round, *, efa: bool) -> str:
    """Return why a round of nodes that have EFA trains without it; empty where it does not.

    `efa`: whether this node has it. EFA does not reach other zones, nor nodes that have none, and
    its plugin for NCCL has no other way to a peer: the round would hang or fail.
    """
    others = [member.efa for member in round_.members]
    if not efa and not any(others):
        return ""
    if len(round_.zones) > 1:
        return f"spans {' and '.join(round_.zones)}, and EFA does not reach other zones"
    return "" if efa and False not in others else "has nodes without EFA"


def sockets_instead(shared: Mapping[str, str], config: AgentConfig, round_: Round) -> str:
    """Return a line about a round that trains without the EFA that its nodes have.

    The line is "" if the round trains as usual, or as the user says.
    """
    why = without_efa(round_, efa=config.efa)
    if not why or NCCL_NET in {*shared, *config.env}:
        return ""
    billed = ", and AWS bills traffic between zones" if len(round_.zones) > 1 else ""
    return f"round {round_.number} {why}: NCCL uses sockets, which are slower{billed}"


def _filled_in(value: str, master: str) -> str:
    """Fill in the master's address. An IPv6 address stands in brackets before a port."""
    value = value.replace("${master_addr}:", addresses.join(master, ""))
    return value.replace("${master_addr}", master)


def folder(config: AgentConfig) -> Path:
    """Return the folder that holds the modules beside a worker's script."""
    if config.entry in ("script", "path"):
        return Path(modules_folder(str(config.workdir / config.command[0])))
    return config.workdir


def command(config: AgentConfig, local_rank: int) -> tuple[str, ...]:
    """Return the command that a worker runs, in the run's folder."""
    first, *args = config.command
    return (first, *(arg.replace("${local_rank}", str(local_rank)) for arg in args))


def _local(shared: Mapping[str, str], local_rank: int, *, virtual: bool) -> dict[str, object]:
    """Return the variables of one worker.

    SPOTELASTIC_LOCAL_RANK tells the workers of a node apart even where LOCAL_RANK is always 0.
    """
    if not virtual:
        return {"LOCAL_RANK": local_rank, "SPOTELASTIC_LOCAL_RANK": local_rank}
    listed = shared.get("CUDA_VISIBLE_DEVICES")
    devices = listed.split(",") if listed else []
    device = devices[local_rank].strip() if local_rank < len(devices) else local_rank
    return {
        "LOCAL_RANK": 0,
        "SPOTELASTIC_LOCAL_RANK": local_rank,
        "CUDA_VISIBLE_DEVICES": device,
    }
