"""The command line of `spotelastic run`: what it accepts, and what it means."""

import dataclasses
import os
import py_compile
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support.store.certificates import certificates
from torch.distributed.run import get_args_parser

from spotelastic.errors import UsageError
from spotelastic.launcher import devices
from spotelastic.launcher import options as launcher_options
from spotelastic.launcher.flags import GROUPS, WITHOUT_EFFECT, given, parse
from spotelastic.launcher.rendezvous_config import RendezvousConfig, meeting
from spotelastic.model.interval import Interval
from spotelastic.model.replication import Replication
from spotelastic.store.endpoints import endpoints_of
from spotelastic.store.tls import TlsFiles

TWO = ("--nnodes", "2", "--node-rank", "0")
VALUES = {"nnodes": "2", "numa_binding": "node", "start_method": "spawn"}
TORCHRUN = [action for action in get_args_parser()._actions if action.option_strings]


def options(*args: str, **environ: str) -> Any:
    return parse([*args, "train.py"], environ)


@pytest.mark.parametrize(
    ("name", "action"),
    [(name, action) for action in TORCHRUN for name in action.option_strings if "help" not in name],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_spelling_of_every_flag_of_torchrun_is_accepted(name: str, action: Any) -> None:
    if name == "-h":
        return
    words = [name] if action.nargs == 0 else [name, VALUES.get(action.dest, "3")]
    told = options(*words)
    assert told.script == "train.py"
    assert str(getattr(told, action.dest)) not in ("", "None", "False", "[]"), "it was lost"


def test_a_variable_counts_where_the_flag_is_not_given() -> None:
    environ = {
        "PET_NNODES": "2:4",
        "PET_MODULE": "1",
        "PET_STANDALONE": "0",
        "PET_MAX_RESTARTS": "7",
    }
    told = options("--max-restarts", "9", **environ)
    assert (told.nnodes, told.module, told.standalone, told.max_restarts) == ("2:4", True, False, 9)
    assert options(**environ).max_restarts == 7


def test_what_is_saved_and_kept_is_told_by_flags_and_variables() -> None:
    environ = {"SPOTELASTIC_KEEP_LAST": "5", "SPOTELASTIC_CHECKPOINT_EVERY": "10m"}
    environ |= {"PET_KEEP_EVERY": "1000", "SPOTELASTIC_KEEP_EVERY": "7"}
    environ |= {"SPOTELASTIC_OUTPUT": str(Path("out").absolute())}
    environ |= {"SPOTELASTIC_REPLICATE": "50MB", "SPOTELASTIC_REHEARSE": "strict"}
    environ |= {"SPOTELASTIC_EXACT": "1"}
    assert launcher_options.settings(
        options("--snapshot-every", "20", **environ)
    ) == dataclasses.replace(
        launcher_options.settings(options()),
        snapshot_every=Interval(steps=20),
        checkpoint_every=Interval(seconds=600.0),
        keep_last=5,
        keep_every=1000,
        outputs=("out",),
        replicate=Replication(50e6),
        rehearse="strict",
        exact=True,
    )
    assert launcher_options.settings(options("--keep_last=2", **environ)).keep_last == 2
    several = options("--output", "a/", "--output=b,./a/c", "--output", "a", **environ)
    assert launcher_options.settings(several).outputs == ("a", "b")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--snapshot-every", "often"], "--snapshot-every often: give steps (500), a time (10m)"),
        (["--checkpoint-every=-3"], "--checkpoint-every -3: give steps"),
        (["--replicate", "fast"], "--replicate fast: give auto, off, or bytes per second (100MB)"),
        (["--replicate", "0MB"], "--replicate 0MB: a rate is more than nothing; off means no"),
        (["--keep-last", "0"], "--keep-last 0: must be at least 1"),
        (["--output", "."], "--output .: name a folder within the working folder, such as out"),
        (["--output", "a/../../b"], "--output a/../../b: name a folder within the working"),
        (["--output", "/tmp"], "--output /tmp: name a folder within the working folder"),
        (["--keep-every=-1"], "--keep-every -1: must not be negative"),
        (["--stall-timeout=-1"], "--stall-timeout -1: must not be negative"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(args: list[str], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        launcher_options.settings(options(*args))
    assert told in str(refused.value)


def test_a_variable_that_is_no_choice_is_refused() -> None:
    with pytest.raises(UsageError, match="PET_RANK_POLICY=foo: choose from stable, pinned"):
        options(PET_RANK_POLICY="foo")
    with pytest.raises(UsageError, match="SPOTELASTIC_REHEARSE=on: choose from auto, off, strict"):
        options(SPOTELASTIC_REHEARSE="on")
    with pytest.raises(UsageError, match="--rehearse on: choose from auto, off, strict"):
        options("--rehearse", "on")


def test_every_flag_has_its_variable() -> None:
    for flags in GROUPS.values():
        for flag in flags:
            text = "1" if not flag.choices else flag.choices[0]
            told = options(**{f"PET_{flag.dest.upper()}": text})
            assert getattr(told, flag.dest) not in ("", None, False, []), flag


def test_what_follows_the_script_is_the_scripts() -> None:
    told = parse(["--nnodes", "1", "train.py", "--nnodes", "9", "-m", "--unknown"], {})
    assert (told.nnodes, told.args) == ("1", ["--nnodes", "9", "-m", "--unknown"])


def test_what_has_no_effect_is_known_so_that_it_can_be_said() -> None:
    assert given(options("--start_method", "fork", "--use_env"), WITHOUT_EFFECT) == [
        "--start-method",
        "--use-env",
    ]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--max-restarts", "x", "s.py"], "--max-restarts x: needs a whole number"),
        (["--unknown", "s.py"], "--unknown"),
        (
            ["--numa-binding", "east", "s.py"],
            "--numa-binding east: choose from node, socket",
        ),
        (["--nnodes", "2"], "no script is given"),
        (["--nnodes"], "--nnodes: needs a value"),
        (["--stall-timeout", "x", "s.py"], "--stall-timeout x: needs a number"),
        (["--gang=3", "s.py"], "--gang: takes no value"),
    ],
)
def test_the_parsers_own_complaints_are_one_line(args: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told) as error:
        parse(args, {})
    assert "\n" not in str(error.value)


# -- meaning --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], RendezvousConfig("alone")),
        (["--standalone", "--rdzv-endpoint", "a"], RendezvousConfig("alone")),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"], RendezvousConfig("alone")),
        (["--master-addr", "h"], RendezvousConfig("alone")),
        (["--rdzv-endpoint", "a"], RendezvousConfig("client", ("a:29400",))),
        (
            ["--nnodes", "3", "--rdzv-endpoint", "a:1,b,[::1]:7"],
            RendezvousConfig("client", ("a:1", "b:29400", "[::1]:7")),
        ),
        (
            ["--rdzv_backend", "etcd", "--rdzv_endpoint", "a", "--nnodes", "1:4"],
            RendezvousConfig("client", ("a:2379",)),
        ),
        (
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a", "--rdzv-conf", "join_timeout=5"],
            RendezvousConfig("either", ("a:29400",), join_within=5.0),
        ),
        (
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a", "--rdzv-conf", "is_host=false"],
            RendezvousConfig("guest", ("a:29400",)),
        ),
        (
            ["--rdzv-backend", "embedded", "--rdzv-endpoint", "a,b:7,c", "--local-addr", "1.2.3.4"],
            RendezvousConfig("either", ("a:29400", "b:7", "c:29400"), near="1.2.3.4"),
        ),
        (
            ["--rdzv-endpoint", "https://a:1,https://b:1", "--rdzv-id", "job"],
            RendezvousConfig("client", ("a:1", "b:1"), tls=TlsFiles(), run="job"),
        ),
        (
            ["--nnodes", "2", "--node_rank", "0", "--master_addr", "h", "--master_port", "5"],
            RendezvousConfig("host", ("h:1005",), "--master-addr", master="h:5", master_port=5),
        ),
        (
            ["--nnodes", "2", "--rdzv-backend", "static", "--node-rank", "1", "--master-addr", "h"],
            RendezvousConfig(
                "guest", ("h:30500",), "--master-addr", master="h:29500", master_port=29500
            ),
        ),
        (
            [*TWO, "--master-port", "65000", "--rdzv-conf", "join_timeout=5"],
            RendezvousConfig(
                "host",
                ("127.0.0.1:64000",),
                "--master-addr",
                5.0,
                master="127.0.0.1:65000",
                master_port=65000,
            ),
        ),
        (
            [
                *TWO,
                "--rdzv-backend",
                "static",
                "--rdzv-endpoint",
                "h",
                "--rdzv-conf",
                "etcd_port=7",
            ],
            RendezvousConfig("host", ("h:7",), master="h:29500", master_port=29500),
        ),
        (
            [*TWO, "--master-addr", "::1", "--master-port", "5"],
            RendezvousConfig(
                "host", ("[::1]:1005",), "--master-addr", master="[::1]:5", master_port=5
            ),
        ),
        (
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "[fd00::1]:7,[fd00::2],[fd00::3]"],
            RendezvousConfig("either", ("[fd00::1]:7", "[fd00::2]:29400", "[fd00::3]:29400")),
        ),
        (["--node-rank", "0", "--master-port", "5"], RendezvousConfig("alone", master_port=5)),
        (["--standalone", "--master-port", "5"], RendezvousConfig("alone", master_port=5)),
        (
            ["--rdzv-endpoint", "a", "--master-port", "5"],
            RendezvousConfig("client", ("a:29400",), master_port=5),
        ),
    ],
)
def test_where_the_nodes_meet(args: list[str], expected: RendezvousConfig) -> None:
    told = options(*args)
    assert meeting(told, *launcher_options.sizes(told.nnodes)) == expected


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--nnodes", "2"], "--rdzv-endpoint is missing"),
        (["--nnodes", "2", "--standalone"], "--nnodes 2"),
        (["--rdzv-backend", "zookeeper"], "--rdzv-backend zookeeper"),
        (["--rdzv-endpoint", "etcd://a:1"], "--rdzv-endpoint etcd://a:1"),
        (["--rdzv-endpoint", "http://a:1/v3"], "--rdzv-endpoint http://a:1/v3"),
        (["--rdzv-endpoint", "https://a,b"], "--rdzv-endpoint https://a,b"),
        (["--rdzv-endpoint", "http://a", "--rdzv-conf", "protocol=https"], "protocol=https"),
        (["--rdzv-endpoint", "a:99999"], "--rdzv-endpoint a:99999"),
        (["--rdzv-endpoint", "::1"], "--rdzv-endpoint ::1"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "a,b"], "a:29400,b:29400: 2 etcd members"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "a,b,a"], "a:29400 is needed twice"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "a:1,a:2,b:1"], "a:2 is needed twice"),
        (
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a,localhost,b"],
            "localhost means a different machine",
        ),
        (
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "https://a"],
            "--rdzv-conf protocol=https: members run here need cacert",
        ),
        (["--nnodes", "2:3", "--node-rank", "0"], "--nnodes 2:3"),
        (["--nnodes", "2", "--node-rank", "2"], "--node-rank 2"),
        ([*TWO, "--master-port", "0"], "--master-port 0"),
        (["--standalone", "--master-port", "70000"], "--master-port 70000"),
        ([*TWO, "--rdzv-conf", "etcd_port=29500"], "etcd_port=29500: that port is the"),
        ([*TWO, "--rdzv-conf", "etcd_port=no"], "etcd_port=no: not a port"),
        (["--rdzv-endpoint", "a", "--rdzv-conf", "join"], "--rdzv-conf join"),
        (["--rdzv-endpoint", "a", "--rdzv-conf", "'join_timeout=5'"], "the ' is part of it"),
        (["--rdzv-endpoint", "a", "--rdzv-conf", 'join_timeout=5"'], 'the " is part of it'),
        (["--rdzv-endpoint", "a", "--rdzv-conf", "protocol=ftp"], "protocol=ftp"),
        (["--rdzv-endpoint", "a", "--rdzv-conf", "peer_port=x"], "--rdzv-conf peer_port=x"),
        (["--rdzv-endpoint", "a", "--rdzv-conf", "cert=c.pem"], "--rdzv-conf cert=c.pem"),
        (["--rdzv-endpoint", "https://a", "--rdzv-conf", "key=/no.pem"], "key=/no.pem: No such"),
    ],
)
def test_a_meeting_that_cannot_be_names_the_flag_and_the_value(args: list[str], told: str) -> None:
    given_ = options(*args)
    with pytest.raises(UsageError) as error:
        meeting(given_, *launcher_options.sizes(given_.nnodes))
    assert told in str(error.value)


def test_daemons_use_the_certificates_where_that_is_asked_for(tmp_path: Path) -> None:
    def told(tls: TlsFiles, more: str, endpoint: str = "https://a") -> RendezvousConfig:
        conf = f"cacert={tls.cacert},cert={tls.cert},key={tls.key}{more}"
        given_ = options("--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint, "--rdzv-conf", conf)
        return meeting(given_, 1, 1)

    both = certificates(tmp_path / "both")
    assert told(both, "").daemon_tls is None
    assert told(both, ",daemon_tls=false").daemon_tls is None
    assert told(both, ",daemon_tls=true").daemon_tls == both
    with pytest.raises(UsageError, match="daemon_tls=maybe: give true or false"):
        told(both, ",daemon_tls=maybe")
    client = certificates(tmp_path / "client", serves=False)
    with pytest.raises(UsageError, match="servers and clients: unsuitable certificate purpose"):
        told(client, ",daemon_tls=true")
    strange = dataclasses.replace(both, cacert=client.cacert)
    with pytest.raises(UsageError, match=r"daemon_tls=true: .* certificate"):
        told(strange, ",daemon_tls=true")
    for conf in ("daemon_tls=true", f"daemon_tls=true,cacert={both.cacert},protocol=https"):
        with pytest.raises(UsageError, match="daemon_tls=true: nodes need cacert, cert and key"):
            meeting(options("--rdzv-endpoint", "a", "--rdzv-conf", conf), 1, 1)


def test_members_speak_with_each_other_one_port_above_or_where_they_are_told() -> None:
    several = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "a,b:7,c")
    assert meeting(options(*several), 1, 3).peers == {
        "a:29400": "a:29401",
        "b:7": "b:8",
        "c:29400": "c:29401",
    }
    told = meeting(options(*several, "--rdzv-conf", "peer_port=5"), 1, 3)
    assert set(told.peers.values()) == {"a:5", "b:5", "c:5"}


def test_an_endpoint_without_a_port_is_at_29400() -> None:
    assert endpoints_of("a,[fe80::1],b:2379", 29400) == ("a:29400", "[fe80::1]:29400", "b:2379")


def test_workers_on_each_node() -> None:
    cpus = len(os.sched_getaffinity(0))
    assert [devices.workers(text, drivers=()) for text in ("3", "cpu", "auto")] == [3, cpus, cpus]
    for wrong in ("gpu", "0", "-1", "many"):
        with pytest.raises(UsageError, match=f"--nproc-per-node {wrong}"):
            devices.workers(wrong, drivers=())


def test_torch_is_asked_for_the_gpus_where_there_is_a_driver(
    tmp_path: Path,
) -> None:
    assert devices.gpus(drivers=(tmp_path,)) == torch.cuda.device_count()


def test_one_worker_like_torchrun() -> None:
    assert launcher_options.settings(options()).workers == 1


def test_what_a_worker_runs(tmp_path: Path) -> None:
    for name in ("train.py", "my-tool.py", "package/tool.py", "folder/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    py_compile.compile(str(tmp_path / "train.py"), str(tmp_path / "train.pyc"))
    with zipfile.ZipFile(tmp_path / "train.pyz", "w") as archive:
        archive.writestr("__main__.py", "")

    def command(*args: str, **environ: str) -> object:
        return launcher_options.command(parse(args, {}), tmp_path, environ)

    assert command("train.py", "-x") == ("script", ("train.py", "-x"))
    for script in ("folder", "folder/", "./train.pyc", "train.pyz", str(tmp_path / "train.py")):
        assert command(script) == ("script", (script,)), "as it was typed"
    assert command("--run-path", "train.py") == ("path", ("train.py",))
    for module in ("package.tool", "my-tool", "folder", "this"):
        assert command("-m", module, "1") == ("module", (module, "1"))
    assert command("--no-python", "/bin/sh", "-c", "a") == ("program", ("/bin/sh", "-c", "a"))
    python = command("train.py", "-x", PYTHON_EXEC="/bin/sh")
    assert python == ("program", ("/bin/sh", "-u", "train.py", "-x"))


@pytest.mark.parametrize(
    "args",
    [
        ("missing.py",),
        ("folder",),
        ("--run-path", "missing.py"),
        ("-m", "nowhere"),
        ("-m", "folder"),
        ("-m", "json.nowhere"),
        ("-m", "json"),
        ("-m", "train.py/"),
        ("-m", "train.py"),
        ("-m", ".train"),
        ("-m", "__main__"),
        ("archive.zip",),
        ("old.pyc",),
        ("broken.py",),
        ("--no-python", "./missing"),
        ("--no-python", "missing-program"),
    ],
)
def test_what_is_not_there_is_said_before_anything_starts(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "old.pyc").write_bytes(b"\0" * 16)
    zipfile.ZipFile(tmp_path / "archive.zip", "w").close()
    with pytest.raises(UsageError) as error:
        launcher_options.command(parse(args, {}), tmp_path, os.environ)
    assert args[-1] in str(error.value)


@pytest.mark.parametrize(
    ("args", "policy", "rank"),
    [
        (["--node-rank", "1"], "pinned", 1),
        (["--master-addr", "h"], "pinned", 0),
        (["--rdzv-backend", "static", "--rank-policy", "stable"], "stable", None),
        (["--rdzv-endpoint", "a", "--node-rank", "1"], "stable", None),
        (["--rdzv-endpoint", "a", "--node-rank", "1", "--rank-policy", "pinned"], "pinned", 1),
        (["--rdzv-endpoint", "a", "--rank-policy", "pinned"], "pinned", None),
    ],
)
def test_a_node_rank_counts_where_ranks_are_pinned(
    args: list[str], policy: str, rank: int | None
) -> None:
    told = options("--nnodes", "2", *args)
    assert launcher_options.settings(told).rank_policy == policy
    assert launcher_options.node_rank(told) == rank


def test_a_node_rank_that_no_round_can_have_is_named() -> None:
    told = options("--nnodes", "1:2", "--rank-policy", "pinned", "--rdzv-endpoint", "a")
    told.node_rank = 2
    with pytest.raises(UsageError, match="--node-rank 2: needs to be from 0 to 1"):
        launcher_options.node_rank(told)


def test_a_script_is_told_from_another_version_of_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("steps = 5\n")
    one = launcher_options.code("script", (str(script), "--fast"))
    assert one == launcher_options.code("script", (str(script),))
    script.write_text("steps = 6\n")
    assert len(one) == 64 and launcher_options.code("script", (str(script),)) != one
    assert launcher_options.code("module", ("train",)) == ""


def test_looking_for_a_module_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "package" / "tool.py").touch()
    entry, _ = launcher_options.command(parse(["-m", "package.tool"], {}), tmp_path, {})
    assert entry == "module"


def test_signals_and_the_time_between_them() -> None:
    assert launcher_options.signals("SIGTERM, SIGUSR1") == (signal.SIGTERM, signal.SIGUSR1)
    for wrong in ("SIGKILL", "TERM", "9"):
        with pytest.raises(UsageError, match=f"--signals-to-handle {wrong}"):
            launcher_options.signals(wrong)
    variable = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "20"}
    assert launcher_options.grace(options(), {}) == 10
    assert launcher_options.grace(options(), variable) == 20
    assert launcher_options.grace(options("--shutdown-timeout", "5"), variable) == 5


def test_virtual_local_ranks_need_a_device_each() -> None:
    told = options("--virtual-local-rank")
    launcher_options.check_devices(told, 2, {"CUDA_VISIBLE_DEVICES": "4,5"})
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=4"):
        launcher_options.check_devices(told, 2, {"CUDA_VISIBLE_DEVICES": "4"})


def test_a_flag_may_be_abbreviated_up_to_the_script() -> None:
    args = ["--redirect=3", "--nproc", "2", "--rdzv_end", "a:1", "-t", "1", "--stand"]
    options = parse([*args, "train.py", "--n", "7", "--standalon"], {})
    assert (options.redirects, options.nproc_per_node, options.tee) == ("3", "2", "1")
    assert options.rdzv_endpoint == "a:1" and options.standalone
    assert options.args == ["--n", "7", "--standalon"]


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--rdzv-", "--rdzv- could be --rdzv-backend, --rdzv-conf"),
        ("--nprocs-per-node", "no such option: --nprocs-per-node; did you mean --nproc-per-node"),
        ("--nprocs_per_node=2", "no such option: --nprocs_per_node; did you mean --nproc-per-node"),
        ("--qqq", r"no such option: --qqq \("),
    ],
)
def test_a_flag_that_is_none(flag: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse([flag, "train.py"], {})


def test_gpus_are_checked_where_there_is_a_driver_unless_a_flag_says_no(tmp_path: Path) -> None:
    driver = tmp_path / "nvidiactl"
    assert not launcher_options.health_checks(options(), (driver,)).gpus
    driver.touch()
    found = launcher_options.health_checks(options(), (driver,))
    assert (found.gpus, found.promised) == (True, 0), "nobody promised how many there are"
    assert not launcher_options.health_checks(options("--no-gpu-check"), (driver,)).gpus
    off = options(SPOTELASTIC_NO_GPU_CHECK="1")
    assert not launcher_options.health_checks(off, (driver,)).gpus
