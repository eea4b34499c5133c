"""The commands against a cluster that another terminal has started and left."""

import json
import tarfile
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from support.clusters.local_cloud import environment
from support.processes import mac
from support.processes.patience import PATIENT
from support.processes.scraping import scraped
from support.processes.terminal import PROGRAM, Terminal, within
from support.processes.warm_python import COMMANDS, warm_python
from support.unkind import UNKIND
from support.unkind.fault_client import FaultClient

from spotelastic.client.published import published_facts
from spotelastic.local import cloud
from spotelastic.metrics.job import samples

SCRIPT = """
import os, sys, time
for number in range(10_000):
    if number == 1:
        print("line told by mistake:", *sys.argv, os.environ["PLANTED"], os.environ["API"])
    print("line", number, flush=True)
    time.sleep(0.2)
"""

SECRET, PLANTED, TYPED = "s3cr3t-of-the-user", "postgres://me:pw@db", "typed-by-mistake-42"
SECRETS = ("--secret", "API", "--env", f"PLANTED={PLANTED}")
"""What must not get into a dump, together with the script's arguments."""
SCRIPT_ARGS = ("--api-key", TYPED, "--name", SECRET)
METRICS = 9464
AS_BEFORE = ("--name", "demo", "--deadline", "8h", "--metrics-port", str(METRICS))


def user(folder: Path, program: list[str] = PROGRAM, **variables: str) -> Terminal:
    return Terminal(folder, program, None, **({"API": SECRET} | variables))


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    terminal = user(tmp_path_factory.mktemp("user"), PROGRAM, **{cloud.PROGRAM: UNKIND})
    (terminal.folder / "train.py").write_text(SCRIPT)
    (terminal.folder / ".spotelasticignore").write_text("home/\n")
    told = terminal(
        *("up", "--local", "--detach", "--min", "1", "--max", "2"),
        *(*AS_BEFORE, "--instance-types", "m5.large", *SECRETS, "train.py", *SCRIPT_ARGS),
    )
    try:
        assert told.returncode == 0, told.stderr
        assert "demo stays up" in told.stdout
        with warm_python(*COMMANDS) as terminal.warm:
            yield terminal
    finally:
        terminal.warm = None
        ended = terminal("down")
    assert ended.returncode == 0, ended.stderr
    assert "demo is gone" in ended.stdout
    assert terminal("ls", "--local").returncode == 2
    assert not (terminal.folder / "home/local.json").exists()


@pytest.fixture(scope="module")
def laptop(terminal: Terminal) -> Terminal:
    """The same folder on a Mac, to which the local cloud is an account of AWS."""
    with environment(SPOTELASTIC_HOME=str(terminal.folder / "home")):
        info = cloud.find()
    assert info is not None
    elsewhere = str(terminal.folder / "home/of-the-mac")
    account = cloud.environment(info) | {"SPOTELASTIC_HOME": elsewhere}
    return user(terminal.folder, mac.command("spotelastic"), **account)


def test_the_status_names_every_node(terminal: Terminal) -> None:
    assert within(PATIENT, lambda: len(terminal.training()) == 2)
    status = terminal.json("status")
    assert (status["name"], status["state"]) == ("demo", "running")
    assert sorted(node["role"] for node in status["nodes"]) == ["control"] * 3 + ["worker"] * 2
    ranks = [rank for node in status["nodes"] for rank in node["ranks"]]
    assert sorted(ranks) == [0, 1]
    assert all(node["zone"] and node["address"] for node in status["nodes"])
    assert all(node["id"] in terminal("status", "demo").stdout for node in status["nodes"])


def test_every_node_serves_metrics_on_its_address_and_one_of_the_job(terminal: Terminal) -> None:
    nodes = terminal.cluster.status().nodes
    pages = {node.id: scraped(node.address, METRICS) for node in nodes}
    by_state = {node.state: pages[node.id] for node in nodes}
    assert 'spotelastic_job_state{cluster="demo",state="running"} 1.0' in by_state["leading"]
    assert 'spotelastic_cloud_calls_total{cluster="demo",outcome="ok",' in by_state["leading"]
    assert 'spotelastic_controller_leads{cluster="demo"} 0.0' in by_state["standing by"]
    assert "spotelastic_job_" not in by_state["standing by"]
    workers = {node.id: pages[node.id] for node in nodes if node.role == "worker"}
    assert all(f'spotelastic_node_info{{cluster="demo",node="{n}"' in workers[n] for n in workers)
    with pytest.raises(OSError, match="refused"):
        scraped("127.0.0.1", METRICS)
    told = {each.metric.name for each in samples(published_facts(terminal.cluster.record))}
    assert told > {"job_state", "rounds_total", "cost_dollars_total", "nodes_max"}


def test_the_logs_are_those_of_the_ranks_asked_for(terminal: Terminal) -> None:
    assert within(PATIENT, lambda: terminal.printed("line 0"))
    assert "rank 0: line 0" in terminal("logs").stdout
    lines = terminal("logs", "--rank", "0").stdout.splitlines()
    assert lines
    assert all(" rank 0: line " in line for line in lines)
    node = lines[0].split()[0]
    assert terminal("logs", "--node", node).stdout.startswith(node)
    for flags, what in {
        ("--rank", "99"): "--rank 99: demo has no such rank; the ranks are: 0 to 1",
        ("--node", "nosuch"): "--node nosuch is not a node of demo; the nodes are: i-",
        ("--node", "nosuch", "--follow"): "--node nosuch is not a node of demo; the nodes are: i-",
    }.items():
        refused = terminal("logs", *flags)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"spotelastic: {what}") and refused.stderr.count("\n") == 1


def test_the_clusters_are_listed(terminal: Terminal) -> None:
    (listed,) = terminal.json("ls")
    assert (listed["name"], listed["state"], listed["nodes"]) == ("demo", "running", 2)
    row = terminal("ls").stdout.splitlines()[1].split()
    assert row[:2] == ["demo", "running"] and "2" in row


SEEN = """
import contextlib, io, json
from spotelastic.cli import main
told = {{}}
for words in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        main.run_command(words.split())
    told[words] = output.getvalue()
print(json.dumps(told))
"""
"""Runs commands one after another in one process, and prints what each has printed."""


@pytest.mark.soak
def test_a_mac_sees_what_this_machine_sees(terminal: Terminal, laptop: Terminal) -> None:
    assert within(PATIENT, lambda: len(terminal.training()) == 2)
    assert within(PATIENT, terminal.has_report)
    plan = "up --plan --min 1 --max 2 --name demo train.py"
    shown = ("status", "ls", "events", "report", "report --cost")
    commands = (*(f"{each} --json" for each in shown), "logs demo --rank 0", plan)
    done = user(
        laptop.folder, mac.command("-c", SEEN.format(commands=commands)), **laptop.variables
    )()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    seen = {each: json.loads(told[f"{each} --json"]) for each in shown}
    assert {node["id"] for node in seen["status"]["nodes"]} >= terminal.training()
    assert [each["name"] for each in seen["ls"]] == ["demo"]
    assert seen["events"][:3] == terminal.json("events")[:3]
    assert seen["report"]["job"]["state"] == "running"
    assert seen["report --cost"]["usd_per_hour"] > 0
    assert "rank 0: line 0" in told["logs demo --rank 0"]
    assert "would change the cluster demo: " in told[plan]


def test_up_again_changes_nothing_and_shows_the_job_again(terminal: Terminal) -> None:
    before = {node["id"] for node in terminal.json("status")["nodes"]}
    told = terminal(
        *("up", "--local", "--detach", "--min", "1", "--max", "2"),
        *(*AS_BEFORE, *SECRETS, "train.py", *SCRIPT_ARGS),
    )
    assert told.returncode == 0, told.stderr
    assert "demo is up already; changes: none" in told.stdout
    assert {node["id"] for node in terminal.json("status")["nodes"]} == before


def test_a_plan_says_what_would_change_and_changes_nothing(terminal: Terminal) -> None:
    flags = ("--min", "1", "--max", "4", "--linger", "2h", "--name", "demo")
    other = ["--max-cost", "5", "--on-demand", "base=1", "--read", "s3://data/train", "--gang"]
    other += ["--max-price", "0.001"]
    told = terminal("up", "--local", "--plan", *flags, *other, *SECRETS, "train.py", *SCRIPT_ARGS)
    assert told.returncode == 0, told.stderr
    assert (
        "would change the cluster demo: max 2 -> 4; "
        "on-demand never -> base=1; max-price none -> 0.001; max-cost none -> 5.0; "
        "deadline 480 min -> none; gang no -> yes; metrics-port 9464 -> none; "
        "read none -> data/train; linger 10 min -> 120 min\n"
    ) in told.stdout
    assert "warning: --max-price 0.001 is below the current price of 0." in told.stdout
    assert "there will be no nodes but those on demand until the price falls" in told.stdout
    assert "it ends by itself 120 min after its job" in told.stdout
    assert "public IPv4 address" in told.stdout
    assert len(terminal.json("status")["nodes"]) == 5


def test_types_that_must_not_share_a_job_are_named(terminal: Terminal) -> None:
    types = "m5.large,g5.xlarge"
    told = terminal("up", "--local", "--name", "other", "--instance-types", types, "train.py")
    assert (told.returncode, told.stderr) == (
        2,
        "spotelastic: --instance-types: m5.large and g5.xlarge must not share a job: "
        "gpus none and 1\n",
    )
    assert [each["name"] for each in terminal.json("ls")] == ["demo"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--name", "demo", "--resume", "other"),
            "the cluster demo exists and trains the run demo",
        ),
        pytest.param(
            ("--name", "next", "--resume", "demo"),
            "the cluster demo trains that run",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ("--resume", "never"),
            "it has no checkpoints in s3://spotelastic-123456789012",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_run_that_cannot_be_resumed_is_refused(
    terminal: Terminal, flags: tuple[str, ...], words: str
) -> None:
    told = terminal("up", "--local", "--instance-types", "m5.large", *flags, "train.py")
    assert told.returncode == 2
    assert words in told.stderr and told.stderr.count("\n") == 1
    assert [each["name"] for each in terminal.json("ls")] == ["demo"]


@pytest.mark.parametrize("command", [("status", "nope"), ("down", "nope"), ("logs", "nope")])
def test_a_name_that_does_not_exist_is_told_with_those_that_do(
    terminal: Terminal, command: tuple[str, ...]
) -> None:
    told = terminal(*command)
    assert told.returncode == 2
    assert told.stderr == "spotelastic: there is no cluster named nope; the clusters are: demo\n"


def test_the_report_of_a_job_that_runs_is_as_if_it_ended_now(terminal: Terminal) -> None:
    assert within(PATIENT, terminal.has_report)
    job = terminal.json("report")["job"]
    assert job["state"] == "running"
    assert 0 <= job["final_step"] <= job["steps_run"]


def test_the_cost_of_a_job_that_runs_is_told_against_on_demand(terminal: Terminal) -> None:
    cost = terminal.json("report", "--cost")
    assert 0 < cost["cost_usd"] < cost["on_demand_usd"]
    assert cost["usd_per_hour"] > 0
    assert cost["total_usd"] > cost["cost_usd"], "control nodes cost something, too"
    shown = terminal("report", "demo", "--cost").stdout
    assert "control nodes" in shown and "saved" in shown


def test_the_events_say_once_how_long_each_phase_of_a_nodes_boot_took(terminal: Terminal) -> None:
    assert within(PATIENT, lambda: bool(terminal.training()))
    node = min(terminal.training())

    def phases() -> list[Any]:
        told = [event for event in terminal.cluster.events() if event.node == node]
        return [event for event in told if "phases" in event.data]

    assert within(PATIENT, lambda: bool(phases()))
    (booted,) = (
        event
        for event in terminal.json("events")
        if event["node"] == node and "phases" in event["data"]
    )
    assert booted["data"]["phases"].keys() == {"disks", "job", "environment"}
    assert booted["message"].startswith(f"{node}: boot: disks ")


@pytest.mark.soak
def test_an_interrupted_node_is_warned_leaves_and_is_replaced(terminal: Terminal) -> None:
    assert within(PATIENT, lambda: len(terminal.training()) == 2)
    caused = terminal.json("interrupt", "rank 0", "--in", "2")
    victim = caused["node"]
    assert caused["kind"] == "spot_interruption"
    assert within(PATIENT, lambda: len(terminal.training() - {victim}) == 2)
    rows = {row["node"]: row for row in terminal.json("report")["interruptions"]}
    assert rows[victim]["pause_s"] is not None
    kinds = [event["kind"] for event in terminal.json("events") if event["node"] == victim]
    assert "notice" in kinds


def test_a_node_that_does_not_exist_cannot_be_interrupted(terminal: Terminal) -> None:
    told = terminal("interrupt", "i-nope")
    assert told.returncode == 2
    assert "demo has no node i-nope; it has i-" in told.stderr


def dumped(file: Path) -> dict[str, bytes]:
    """The files of a dump by their names; none has a secret."""
    with tarfile.open(file) as tar:
        found = {each.name.partition("/")[2]: tar.extractfile(each) for each in tar}
        files = {name: file.read() for name, file in found.items() if file is not None}
    for planted in (SECRET, PLANTED, TYPED):
        assert [name for name, data in files.items() if planted.encode() in data] == []
    return files


def told_twice(terminal: Terminal) -> bool:
    """Whether both ranks have said what they must not say."""
    return sum("told by mistake" in line.text for line in terminal.cluster.logs()) >= 2


def test_a_dump_has_what_every_node_has_written_and_no_secret(
    terminal: Terminal, laptop: Terminal
) -> None:
    assert within(PATIENT, lambda: len(terminal.training()) == 2)
    assert within(PATIENT, lambda: told_twice(terminal))
    made = terminal("dump", "--output", "demo.tar.gz")
    assert made.returncode == 0, made.stderr
    files = dumped(terminal.folder / "demo.tar.gz")
    assert {"status.json", "job.json", "events.jsonl"} <= files.keys()
    job = json.loads(files["job.json"])
    assert job["args"] == ["--api-key", "***", "--name", "***"]
    assert (job["env"], job["secrets"]) == (["PLANTED"], ["API"])
    for node in terminal.cluster.status().nodes:
        assert f"{node.role} of demo".encode() in files[f"console-{node.id}.log"]
    assert files["output.log"].count(b"told by mistake") >= 2


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("nope",), "there is no cluster named nope; the clusters are: demo"),
        (("--output", "no/such/folder.tar.gz"), "--output no/such/folder.tar.gz: No such"),
    ],
)
def test_a_dump_that_cannot_be_is_refused_in_one_line(
    terminal: Terminal, args: tuple[str, ...], told: str
) -> None:
    refused = terminal("dump", *args)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"spotelastic: {told}"), refused.stderr
    assert refused.stderr.count("\n") == 1


# -- how the job goes on: these come last, in this order ------------------------------------------


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--min", "3", "--max", "2"), "--min 3 is above --max 2"),
        (("--max", "5"), "--max 5: quota allows 4 of 5 spot m5.large "),
    ],
)
def test_a_scale_that_cannot_be_is_refused_in_one_line(
    terminal: Terminal, args: tuple[str, ...], told: str
) -> None:
    with environment(SPOTELASTIC_HOME=str(terminal.folder / "home")):
        info = cloud.find()
    assert info is not None
    FaultClient(info).set_quota("L-34B43A08", 8)
    refused = terminal("scale", "demo", *args)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"spotelastic: {told}")
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.soak
def test_a_job_is_scaled_up_while_its_nodes_train_on(terminal: Terminal) -> None:
    assert within(PATIENT, lambda: len(terminal.training()) == 2)
    before = terminal.training()
    assert terminal.json("scale", "--max", "3")["text"] == "will have 1 to 3 nodes"
    assert within(PATIENT, lambda: len(terminal.training()) == 3)
    assert terminal.training() > before
    assert terminal.json("scale", "--max", "3")["text"] == "has 1 to 3 nodes already"


def test_a_stopped_job_leaves_its_control_nodes_and_nothing_else(
    terminal: Terminal, laptop: Terminal
) -> None:
    with terminal.goes_on("logs", "-f", "--rank", "0") as logs:
        assert logs.stdout is not None
        newest = terminal("logs", "--rank", "0").stdout.splitlines()[-1]
        told = [*takewhile(f"{newest}\n".__ne__, logs.stdout)]
        told += [next(logs.stdout) for _ in range(3)]  # which were not there then
        done = laptop.json("stop")
        rest, complaint = logs.communicate(timeout=PATIENT)
    assert (logs.returncode, complaint) == (0, ""), "it ends with the job"
    assert all(" rank 0: line " in line for line in (*told, *rest.splitlines()))
    assert done["state"] == "stopped"
    assert done["text"] == "has stopped: stopped by command; nothing is committed"
    assert terminal("stop").returncode == 0, "again is no error"
    roles = lambda: [node.role for node in terminal.cluster.status().nodes]  # noqa: E731
    assert within(PATIENT, lambda: roles() == ["control"] * 3)
    (listed,) = terminal.json("ls")
    assert (listed["state"], listed["nodes"]) == ("stopped", 0)


@pytest.mark.soak
def test_a_restart_runs_the_code_of_the_folder_and_only_there(
    terminal: Terminal, laptop: Terminal, tmp_path: Path
) -> None:
    assert terminal("stop").returncode == 0, "whichever test was before"
    elsewhere = user(tmp_path)
    elsewhere.folder.joinpath("home").symlink_to(terminal.folder / "home")
    refused = elsewhere("restart")
    assert refused.returncode == 2
    assert "demo runs train.py, which is not in this folder" in refused.stderr
    (terminal.folder / "train.py").write_text(SCRIPT.replace("line", "verse"))
    assert laptop.json("restart")["text"].startswith("is restarted from ")
    assert within(PATIENT, lambda: bool(terminal.training()))
    assert within(PATIENT, lambda: terminal.printed("verse 0"))
    assert terminal.json("status")["round"] > 1, "rounds are counted on"
    assert terminal.json("restart")["text"] == "has not ended, and continues"
    refused = terminal("restart", "--max-cost", "99")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "has not ended, and nothing was changed" in refused.stderr
    kinds = [event["kind"] for event in terminal.json("events")]
    assert "loss" not in kinds[kinds.index("restart") :]
