"""What a worker started by `spotelastic run` finds in its environment, and what it is run as."""

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from spotelastic.agent import environment
from spotelastic.agent.config import AgentConfig
from spotelastic.linux import interface_of
from spotelastic.model.job import Settings
from spotelastic.model.round import Member, Round

CONFIG = AgentConfig(
    run="job",
    endpoints=(),
    node="b",
    address="10.0.0.2",
    zone="",
    settings=Settings(2, 2, workers=2),
    command=("train.py", "--gpu=${local_rank}", "$HOME"),
    workdir=Path("/code"),
    state=Path("/state"),
    shm=Path("/shm"),
    storage="",
)


MEMBERS = tuple(
    Member(name, name, slot, f"10.0.0.{slot + 1}", "", 2) for slot, name in enumerate("ab")
)


ROUND = Round(3, "r3", "started", MEMBERS, "start", "", store="10.0.0.1:4711")


NONE: Mapping[str, str] = MappingProxyType({})


def env_of(
    config: AgentConfig,
    shared: Mapping[str, str] = NONE,
    *,
    local_rank: int = 1,
    round_: Round = ROUND,
) -> dict[str, str]:
    return environment.worker(
        shared,
        config,
        config.settings,
        round_,
        round_.members[1],
        local_rank,
        daemon=Path("/daemon"),
        control=Path("/control"),
        error_file=Path("/error"),
    )


def test_a_script_finds_the_first_folder_whose_files_are_kept() -> None:
    assert "SPOTELASTIC_OUTPUT" not in env_of(CONFIG)
    keeps = replace(CONFIG.settings, outputs=("out", "logs"))
    assert env_of(replace(CONFIG, settings=keeps))["SPOTELASTIC_OUTPUT"] == "/code/out"


def test_collectives_are_timed_where_slow_nodes_are_to_be_replaced() -> None:
    """Unless the job says otherwise, or kernels start in their order."""
    name, settings = "TORCH_NCCL_ENABLE_TIMING", Settings(2, 2, workers=2, replace_slow=True)
    replacing = dataclasses.replace(CONFIG, settings=settings)
    assert name not in env_of(CONFIG)
    assert env_of(replacing)[name] == "1"
    assert env_of(replacing, {name: "0"})[name] == "0"
    in_order = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert name not in env_of(replacing, in_order)
    assert name not in env_of(dataclasses.replace(replacing, env=in_order))


def test_a_worker_measures_its_own_time_several_times_until_its_node_may_be_named() -> None:
    assert float(env_of(CONFIG)["SPOTELASTIC_MEASURE_EVERY"]) == 30.0
    off = dataclasses.replace(CONFIG, settings=Settings(2, 2, workers=2, slow_after=0.0))
    assert float(env_of(off)["SPOTELASTIC_MEASURE_EVERY"]) == 0.0


def test_a_worker_rehearses_as_all_nodes_are_told_not_as_its_nodes_environment_says() -> None:
    name, settings = "SPOTELASTIC_REHEARSE", Settings(2, 2, workers=2, rehearse="strict")
    assert env_of(CONFIG, {name: "off"})[name] == "auto"
    assert env_of(dataclasses.replace(CONFIG, settings=settings))[name] == "strict"


def test_a_worker_of_an_exact_run_is_told_so_and_has_what_products_on_gpus_need() -> None:
    names = "SPOTELASTIC_EXACT", "CUBLAS_WORKSPACE_CONFIG"
    exact = dataclasses.replace(CONFIG, settings=Settings(2, 2, workers=2, exact=True))

    def found(config: AgentConfig, environ: dict[str, str]) -> list[str | None]:
        env = env_of(config, environ)
        return [env.get(name) for name in names]

    assert found(CONFIG, {names[0]: "1"}) == ["", None]
    assert found(exact, {}) == ["1", ":4096:8"]
    assert found(exact, {names[1]: ":16:8"}) == ["1", ":16:8"]


def test_a_worker_gets_every_variable_of_torchrun() -> None:
    env = env_of(dataclasses.replace(CONFIG, role="trainer"), {"KEPT": "yes"})
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "trainer",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/error",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGINT,SIGTERM,SIGHUP",
        "KEPT": "yes",
    }
    assert expected.items() <= env.items()
    shared = environment.base({}, "", 2)
    assert shared["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == shared["OMP_NUM_THREADS"] == "1"
    assert "GLOO_SOCKET_IFNAME" not in shared


def test_a_worker_is_told_the_id_of_the_run() -> None:
    told = env_of(CONFIG, round_=replace(ROUND, run_id="run"))
    assert told["SPOTELASTIC_RUN_ID"] == "run"


def test_a_worker_looks_after_errors_of_nccl_unless_the_user_has_said_who_does() -> None:
    handling, ours = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "SPOTELASTIC_NCCL_ERRORS"
    env = env_of(CONFIG, environment.base({}, "", 1))
    assert (env[handling], env[ours]) == ("1", "1")
    for name in (handling, "NCCL_ASYNC_ERROR_HANDLING"):
        for value in "013":
            shared = environment.base({name: value}, "", 1)
            assert shared[name] == value
            assert not env_of(CONFIG, shared)[ours]
            asked = dataclasses.replace(CONFIG, env={name: value})
            env = env_of(asked, environment.base({}, "", 1))
            assert (env[name], env[ours]) == (value, "")


def test_ranks_are_counted_through_nodes_with_unlike_numbers_of_workers() -> None:
    counts = (1, 3, 2)
    members = tuple(
        Member(name, name, slot, "", "", workers)
        for slot, (name, workers) in enumerate(zip("abc", counts, strict=True))
    )
    env = env_of(CONFIG, local_rank=2, round_=dataclasses.replace(ROUND, members=members))
    expected = {"RANK": "3", "ROLE_RANK": "3", "LOCAL_RANK": "2", "GROUP_RANK": "1"}
    sizes = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "3"}
    assert (expected | sizes).items() <= env.items()


@pytest.mark.parametrize(
    ("address", "interface"), [("127.0.0.1", "lo"), ("127.80.0.3", "lo"), ("203.0.113.7", "")]
)
def test_gloo_uses_the_interface_that_has_the_nodes_address(address: str, interface: str) -> None:
    assert interface_of(address) == interface
    assert environment.base({}, interface, 1).get("GLOO_SOCKET_IFNAME", "") == interface
    told = {"GLOO_SOCKET_IFNAME": "eth7"}
    assert environment.base(told, interface, 1)["GLOO_SOCKET_IFNAME"] == "eth7", "as the user says"


@pytest.mark.parametrize(("visible", "device"), [("4, 7", "7"), (None, "1")])
def test_virtual_local_ranks_see_their_own_device_only(visible: str | None, device: str) -> None:
    config = dataclasses.replace(CONFIG, virtual_local_rank=True)
    shared = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    env = env_of(config, shared)
    assert (env["LOCAL_RANK"], env["SPOTELASTIC_LOCAL_RANK"]) == ("0", "1")
    assert env["CUDA_VISIBLE_DEVICES"] == device


def test_further_variables_can_name_where_rank_0_is() -> None:
    config = dataclasses.replace(CONFIG, env={"SERVICE": "${master_addr}:29501", "RANK": "9"})
    env = env_of(config)
    six = env_of(config, round_=dataclasses.replace(ROUND, store="[fd00::1]:4711"))
    assert (six["MASTER_ADDR"], six["MASTER_PORT"]) == ("fd00::1", "4711"), "as torchrun has it"
    assert six["SERVICE"] == "[fd00::1]:29501"
    assert env["SERVICE"] == "10.0.0.1:29501"
    assert env["RANK"] == "3"


def test_the_command_of_a_local_rank() -> None:
    args = ("--gpu=1", "$HOME")
    assert environment.command(CONFIG, 1) == ("train.py", *args), "as it was typed"


def test_a_worker_that_is_alone_on_its_node_has_all_cores() -> None:
    assert "OMP_NUM_THREADS" not in environment.base({}, "", 1)
    assert environment.base({"OMP_NUM_THREADS": "3"}, "", 2)["OMP_NUM_THREADS"] == "3"


def test_the_users_variables_reach_workers_as_they_are() -> None:
    told = {"PYTHONWARNINGS": "error", "ETCD_NAME": "x", "PYTHONUNBUFFERED": ""}
    assert environment.base(told, "", 1).items() >= told.items()


@pytest.mark.parametrize(
    ("zones", "efa", "network"),
    [
        (("a", "a"), True, None),
        (("a", "b"), True, "Socket"),
        (("a", "b"), False, None),
        (("a", ""), True, None),
        (("", ""), True, None),
    ],
)
def test_a_round_that_spans_zones_trains_without_efa(
    zones: tuple[str, str], efa: bool, network: str | None
) -> None:
    members = (
        dataclasses.replace(MEMBERS[0], zone=zones[0]),
        dataclasses.replace(MEMBERS[1], zone=zones[1]),
    )
    round_ = dataclasses.replace(ROUND, members=members)
    config = dataclasses.replace(CONFIG, efa=efa)
    assert env_of(config, round_=round_).get("NCCL_NET") == network
    line = environment.sockets_instead({}, config, round_)
    assert bool(line) == (network is not None)
    if line:
        assert line.startswith("round 3 spans a and b, and EFA does not reach other zones")


@pytest.mark.parametrize(
    ("its", "other", "network"),
    [
        (True, True, None),
        (True, None, None),
        (True, False, "Socket"),
        (False, True, "Socket"),
        (False, False, None),
    ],
)
def test_a_round_uses_efa_if_all_of_its_nodes_have_it(
    its: bool, other: bool | None, network: str | None
) -> None:
    members = tuple(replace(each, efa=has) for each, has in zip(MEMBERS, (other, its), strict=True))
    round_, config = replace(ROUND, members=members), replace(CONFIG, efa=its)
    assert env_of(config, round_=round_).get("NCCL_NET") == network
    line = environment.sockets_instead({}, config, round_)
    assert line == (
        "round 3 has nodes without EFA: NCCL uses sockets, which are slower" if network else ""
    )


def test_what_the_user_says_of_the_network_counts() -> None:
    members = tuple(dataclasses.replace(each, zone=each.node) for each in MEMBERS)
    round_ = dataclasses.replace(ROUND, members=members)
    config = dataclasses.replace(CONFIG, efa=True)
    own = dataclasses.replace(config, env={"NCCL_NET": "AWS Libfabric"})
    assert env_of(own, round_=round_)["NCCL_NET"] == "AWS Libfabric"
    assert env_of(config, {"NCCL_NET": "IB"}, round_=round_)["NCCL_NET"] == "IB"
    assert not environment.sockets_instead({}, own, round_)
    assert not environment.sockets_instead({"NCCL_NET": "IB"}, config, round_)


def test_ranks_save_before_they_rest_where_no_node_can_be_done_without() -> None:
    name = "SPOTELASTIC_SAVE_AT_REST"
    assert env_of(CONFIG)[name] == "1"
    more = replace(CONFIG, settings=replace(CONFIG.settings, min_nodes=1))
    assert env_of(more)[name] == ""
    gang = replace(CONFIG, settings=replace(CONFIG.settings, gang=True))
    assert env_of(gang)[name] == "", "it ends with a node"
