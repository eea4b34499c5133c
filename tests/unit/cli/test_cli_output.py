"""What people and programs get to see."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spotelastic.aws.base.clients import Aws
from spotelastic.cli.app import app
from spotelastic.cli.main import main
from spotelastic.cli.render import tables
from spotelastic.cli.render.progress_view import EVERY, Plain
from spotelastic.client.cluster import Cluster
from spotelastic.client.interrupt import CausedInterruption
from spotelastic.client.targets import find
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.errors import UsageError
from spotelastic.model.counting import usd
from spotelastic.model.estimate import summary
from spotelastic.model.in_place import Rehearsal
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import (
    Cost,
    Event,
    Interruption,
    NodeStatus,
    Report,
    ReportJob,
    Status,
    Upload,
)

NOTICE = Interruption(InterruptionKind.SPOT_INTERRUPTION, "i-1", 1003.0, 0.4, 60, True, 1.2, 0)
LOSS = Interruption(InterruptionKind.LOSS, "i-2", 1008.0, None, 80, False, None, 7)
ETCD = Interruption(InterruptionKind.ETCD, "i-3", 1015.0, 0.1, None, None, 0.0, 0)
REPORT = Report(ReportJob("succeeded", 400, 407), (NOTICE, LOSS, ETCD), 0.875, 0.1, 0.0246, 0.1)
STATUS = Status(
    name="demo",
    state="running",
    at=1000.0,
    round=3,
    step=120,
    loss=2.3456,
    step_time=0.14,
    committed=100,
    nodes=(
        NodeStatus("i-1", "worker", "training", "us-east-1a", "127.80.0.4", (0, 1)),
        NodeStatus("i-9", "control", "leading", "us-east-1b", "127.80.4.4"),
    ),
)


def rendered(renderable: object, width: int = 160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(renderable)
        return console.export_text()


def test_the_report_as_json_has_the_promised_shape() -> None:
    told = json.loads(tables.to_json(REPORT))
    assert told["job"] == {"state": "succeeded", "final_step": 400, "steps_run": 407}
    assert set(told) == {
        "job",
        "interruptions",
        "goodput",
        "node_hours",
        "cost_usd",
        "on_demand_usd",
        "usd_per_hour",
        "prices_of",
        "control_usd",
        "control_usd_per_hour",
        "total_usd",
        "total_usd_per_hour",
        "traffic_usd",
        "traffic_usd_per_hour",
        "rehearsal",
        "fingerprint",
        "skipped",
        "audit",
        "proof",
    }
    assert told["interruptions"][0] == {
        "kind": "spot_interruption",
        "node": "i-1",
        "at": 1003.0,
        "seen_after_s": 0.4,
        "saved_step": 60,
        "committed": True,
        "pause_s": 1.2,
        "steps_lost": 0,
        "told_by": "",
        "seen_after_by": {},
        "first_step_at": None,
        "usd": None,
        "round": None,
        "source": "",
        "restore_s": None,
        "restores": {},
        "step_s": None,
    }


def test_the_status_as_json_has_the_promised_shape() -> None:
    told = json.loads(tables.to_json(STATUS))
    assert (told["name"], told["state"], told["round"], told["step"]) == ("demo", "running", 3, 120)
    assert told["nodes"][0] == {
        "id": "i-1",
        "role": "worker",
        "state": "training",
        "zone": "us-east-1a",
        "address": "127.80.0.4",
        "ranks": [0, 1],
        "type": "",
        "leaves_at": None,
        "gpu": None,
    }


def test_the_report_has_one_row_per_interruption_and_the_bill() -> None:
    text = rendered(tables.report_table(REPORT))
    assert "400 steps (407 run, 7 of them repeated)" in text
    assert "goodput 87.5%" in text
    assert "$0.025 (estimated), $0.10 on demand (75% saved)" in text
    rows = [line for line in text.splitlines() if "i-" in line]
    told = [row.partition("i-")[0].split()[-2:] for row in rows]
    assert told == [["0", "–"], ["7", "–"], ["0", "–"]]
    assert rows[0].startswith("spot notice")
    priced = replace(REPORT, interruptions=(replace(NOTICE, usd=0.004),), prices_of="2025-07-01")
    assert "$0.10 on demand (75% saved, prices of 2025-07-01); $0.0040 for interruptions" in (
        rendered(tables.report_table(priced))
    )


def test_the_report_names_what_traffic_between_zones_has_cost() -> None:
    spread = replace(REPORT, control_usd=1.0, total_usd=22.0, traffic_usd=20.0)
    told = rendered(tables.report_table(spread))
    assert "$1.00 of it for control nodes, $20.00 for traffic between zones" in told


def test_costs_are_left_out_where_prices_are_not_known() -> None:
    free = replace(REPORT, cost_usd=0.0, on_demand_usd=0.0, total_usd=0.0, control_usd=0.0)
    told = rendered(tables.report_table(free))
    assert "node-hours  prices are not known" in told
    cost = Cost("demo", 0.0, 0.0, 0.0, spot_hours=1.5, on_demand_hours=0.0, interruptions_usd=0.0)
    told = rendered(tables.cost_table(cost))
    assert "1.5 spot node-hours; prices are not known" in told and "$" not in told


@pytest.mark.parametrize("width", [160, 100, 80])
def test_each_interruption_is_shown_with_who_told_of_it_and_what_it_cost(width: int) -> None:
    node = "i-0a1b2c3d4e5f60718"
    told = replace(NOTICE, node=node, told_by="imds", usd=0.004)
    lost = replace(LOSS, node=node, told_by="lease", usd=12.5)
    report = replace(REPORT, interruptions=(told, lost))
    lines = rendered(tables.report_table(report), width).splitlines()
    assert all(len(line) <= width for line in lines)
    rows = [line.split() for line in lines]
    first, second = (row for row in rows if node in row)
    assert "$0.0040" in first and "$12.50" in second
    if width > 100:  # on one line
        assert first[-6:] == [node, "60", "yes", "imds", "0.40", "s"] and "lease" in second
    else:
        assert first[-2:] == ["0.40", "s"]
        above = rows[rows.index(first) - 1]
        assert above[:2] == ["spot", "notice"] and above[-3:] == ["60", "yes", "imds"]


def test_a_wide_row_of_the_ledger_is_stacked_before_anything_of_it_is_cut() -> None:
    row = replace(
        LOSS,
        node="i-0a1b2c3d4e5f60718",
        seen_after_s=123.4,
        pause_s=1234.5,
        saved_step=1234567,
        told_by="command",
        usd=0.000032,
    )
    text = rendered(tables.report_table(replace(REPORT, interruptions=(row,))), 80)
    assert "…" not in text
    for shown in (row.node, "command", "2 min 3 s", "20 min 34 s", "1,234,567", "$0.000032"):
        assert shown in text


def test_the_bill_shows_workers_and_control_nodes_apart_and_what_they_come_to() -> None:
    running = ReportJob("running", 400, 407)
    report = replace(
        REPORT,
        job=running,
        usd_per_hour=0.3,
        control_usd=0.1,
        total_usd=0.1246,
        total_usd_per_hour=0.5,
    )
    told = "total    $0.12, $0.10 of it for control nodes, $0.50 an hour now"
    text = rendered(tables.report_table(report))
    assert told in text.splitlines() and "$0.30 an hour now" in text
    ended = rendered(tables.report_table(replace(report, job=REPORT.job)))
    assert "of it for control nodes\n" in ended and "an hour" not in ended
    cost = Cost(
        name="demo",
        usd_per_hour=1.5,
        cost_usd=3.0,
        on_demand_usd=5.0,
        spot_hours=4.0,
        on_demand_hours=1.0,
        interruptions_usd=0.25,
        max_cost=10.0,
        hours_left=4.2,
        prices_of="2025-07-01",
        control_usd_per_hour=0.1,
        control_usd=0.3,
        total_usd_per_hour=1.6,
        total_usd=3.3,
    )
    lines = rendered(tables.cost_table(cost), 80).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "demo",
        "item so far per hour",
        "workers $3.00 $1.50 4 spot, 1 on-demand node-hours",
        "control nodes $0.30 $0.10",
        "total $3.30 $1.60 estimated",
        "limit $10.00 reached in 4.2 h",
        "interruptions $0.25 part of the workers'",
        "workers on demand $5.00 40% saved, prices of 2025-07-01",
    ]


def test_a_terminal_of_80_columns_holds_what_is_shown_on_one() -> None:
    node, told = "i-0a1b2c3d4e5f60718", "may be interrupted soon, as AWS recommends to rebalance"
    rows = tuple(replace(row, node=node, pause_s=123.4, saved_step=12345) for row in (NOTICE, LOSS))
    nodes = (NodeStatus(node, "control", "standing by", "us-east-1a", "127.80.255.255"),)
    for shown in (
        tables.report_table(replace(REPORT, interruptions=rows)),
        tables.status_table(replace(STATUS, nodes=nodes, step=12345, committed=12340)),
        tables.event_row(Event(0.0, "notice", f"{node} {told}")),
        tables.event_row(Event(0.0, "short-life-over", f"{node} {told}")),
    ):
        text = rendered(shown, width=80)
        assert node in text
        assert "…" not in text
        assert not any(line[:1].isspace() and line[:10].strip() for line in text.splitlines())


def test_it_is_shown_where_a_step_came_from_and_how_old_the_newest_replica_is() -> None:
    rows = (replace(LOSS, source="replica"), replace(NOTICE, source=""))
    text = rendered(tables.report_table(replace(REPORT, interruptions=rows)), 80)
    assert "replica" in text
    status = replace(STATUS, step=120, replica=100, step_time=0.15)
    told = "each node's shards of step 100 are on another node, too (20 steps ago, 3 s)"
    assert told in rendered(tables.status_table(status)).splitlines()
    alone = rendered(tables.status_table(replace(status, replica=0)))
    assert "another node" not in alone


def test_a_step_that_was_made_again_is_one_line_and_one_that_differs_a_line_for_each() -> None:
    def shown(found: Rehearsal | None) -> list[list[str]]:
        status = tables.status_table(replace(STATUS, rehearsal=found))
        report = tables.report_table(replace(REPORT, rehearsal=found))
        return [rendered(each).splitlines() for each in (status, report)]

    equal = Rehearsal(2, 3, "equal", ("rehearsed at step 2 on 3 ranks: bit-identical",))
    differs = Rehearsal(2, 3, "different", ("step 2 differs:", "lr is 0.1, was 0.2.", "So it is"))
    assert not any("rehearsed" in line for lines in shown(None) for line in lines)
    for lines in shown(equal):
        assert "rehearsed at step 2 on 3 ranks: bit-identical" in lines
    for lines in shown(differs):
        at = lines.index("step 2 differs:")
        assert lines[at + 1 : at + 3] == ["  lr is 0.1, was 0.2.", "  So it is"]


def test_the_report_shows_the_fingerprint_of_a_run_that_has_one() -> None:
    its = "0123456789abcdef" * 4
    shown = rendered(tables.report_table(replace(REPORT, fingerprint=its))).splitlines()
    assert f"fingerprint {its}" in shown
    assert "fingerprint" not in rendered(tables.report_table(REPORT))


def test_the_list_of_clusters_names_a_job_only_where_a_step_of_it_differs() -> None:
    differs = Rehearsal(2, 3, "different", ("step 2 differs:", "lr is 0.1, was 0.2."))
    found = [replace(STATUS, name="a"), replace(STATUS, name="b", rehearsal=differs)]
    listed = [summary(each, each.at) for each in found]
    *_, first, second = rendered(tables.listing_table(listed)).splitlines()
    assert first.startswith("b") and "step 2 differs:" in first and "differs" not in second


@pytest.mark.parametrize("name", ["demo", "llama-finetune-of-last-week", "n" * 63])
def test_a_narrow_list_of_clusters_cuts_nothing_that_is_needed(name: str) -> None:
    job = replace(STATUS, name=name, step=85_213, total=1_500_000, usd=1234.5, state="failed")
    listed = [summary(replace(job, error="OutOfMemoryError: out of memory"), job.at)]
    text = rendered(tables.listing_table(listed), 80)
    assert "failed" in text and "85,213 of 1,500,000" in text and "$1,234.50" in text
    assert "…" not in text and name in "".join(text.split())
    assert "The job has failed: OutOfMemoryError" in " ".join(text.split())


def test_what_costs_more_than_elsewhere_is_not_said_to_be_saved() -> None:
    def told(paid: float) -> str:
        return rendered(tables.report_table(Report(ReportJob("failed", 1, 1), (), 1, 1, paid, 100)))

    assert "(68% saved" in told(32) and "(9% more" in told(109) and "(0% more" in told(100.1)


def test_a_job_that_went_on_from_earlier_checkpoints_ran_fewer_steps() -> None:
    text = rendered(tables.report_table(Report(ReportJob("succeeded", 80, 20), (), 1.0, 0, 0, 0)))
    assert "80 steps (20 run)  goodput" in text


def test_the_status_shows_every_node() -> None:
    text = rendered(tables.status_table(STATUS))
    assert "step 120   round 3  1 node  loss 2.346   140 ms/step  checkpoint 100" in text
    assert all(word in text for word in ("i-1", "0–1", "control", "leading"))


def test_a_small_loss_is_not_shown_as_zero() -> None:
    assert "  loss 0.0004321  " in rendered(tables.status_table(replace(STATUS, loss=0.00043211)))


def test_the_status_of_a_job_without_nodes_has_no_empty_table() -> None:
    text = rendered(tables.status_table(replace(STATUS, nodes=())))
    assert "step 120" in text and "role" not in text


def test_the_status_counts_down_what_is_left_of_a_notice() -> None:
    leaving = replace(STATUS.nodes[0], state="draining", leaves_at=STATUS.at + 103)
    text = rendered(tables.status_table(replace(STATUS, nodes=(leaving,))))
    assert "draining, leaves in 1 min 43 s" in text


def test_events_of_aws_that_were_not_understood_are_told() -> None:
    """As AWS may change them. Those of other instances are not."""
    messages = {"handled": 7, "foreign": 99, "unknown": 1, "malformed": 2}
    told = "dropped events from AWS: 1 unknown and 2 malformed"
    assert told in rendered(tables.status_table(replace(STATUS, messages=messages))).splitlines()
    assert "dropped" not in rendered(tables.status_table(replace(STATUS, messages={"foreign": 9})))
    assert json.loads(tables.to_json(replace(STATUS, messages=messages)))["messages"] == messages


def test_a_job_that_never_began_says_how_it_ended_and_why() -> None:
    why = "3 instances in a row did not boot: no disk\nThe console of i-1 ends:\nno disk"
    failed = replace(STATUS, state="failed", round=0, reason=why, nodes=())
    first, *_ = lines = rendered(tables.status_table(failed), 80).splitlines()
    assert first.split(maxsplit=1)[1].startswith("failed, 3 instances in a row did not boot")
    assert "failed: no round has begun" in [line.strip() for line in lines]
    _, event, *_ = rendered(tables.events_table([Event(0.0, "job", f"failed: {why}")]), 80).split(
        "\n"
    )
    assert "job" in event and "failed: 3 instances" in event


def test_plain_progress_speaks_when_something_changed_or_some_seconds_passed() -> None:
    lines, now = list[str](), [0.0]
    plain = Plain(lines.append, clock=lambda: now[0])

    def tell(step: int, round: int) -> None:
        plain.status(Status("demo", "running", 0.0, round=round, step=step))

    tell(1, 1)
    tell(2, 1)
    tell(3, 2)
    now[0] += EVERY
    tell(3, 2)
    tell(4, 2)
    assert [line.split("  ")[0] for line in lines] == ["step 1", "step 3", "step 4"]


def test_plain_events_stand_on_a_line_each() -> None:
    lines = list[str]()
    with Plain(lines.append) as plain:
        plain.event(Event(0.0, "notice", "i-1 will go in 15 s"))
        plain.say("drill")
    assert lines[0].endswith("notice      i-1 will go in 15 s")
    assert lines[1] == "drill"


def test_how_often_is_saved_is_shown_once_while_a_job_is_watched() -> None:
    lines = list[str]()
    plain = Plain(lines.append)
    for kind in ("schedule", "notice", "schedule", "notice"):
        plain.event(Event(0.0, kind, "told"))
    assert [line.split()[1] for line in lines] == ["intervals", "notice", "notice"]


def test_messages_with_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    told = "RuntimeError: [/src/pair.cc:553] Connection closed by peer [127.0.0.1]"
    tables.show([Event(0.0, "failure", told)], tables.events_table, as_json=False)
    assert told in capsys.readouterr().out


def test_an_interruption_is_told_to_programs_as_one_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caused = CausedInterruption("i-1", InterruptionKind.SPOT_INTERRUPTION, 120.0)
    monkeypatch.setattr(AwsTarget, "cluster", lambda place, name: name)
    monkeypatch.setattr(find, "find", lambda *_: AwsTarget(Aws("us-east-1")))
    monkeypatch.setattr(Cluster, "interrupt", lambda *_, **__: caused)

    def told(*args: str) -> str:
        return CliRunner().invoke(app, ["interrupt", "i-1", *args], catch_exceptions=False).stdout

    assert told() == "i-1 will be taken away in 120 s\n"
    as_json = {"node": "i-1", "kind": "spot_interruption", "seconds": 120.0}
    assert json.loads(told("--json")) == as_json


def test_an_upload_is_told_with_its_share_and_its_rate() -> None:
    uploading = replace(STATUS, upload=Upload(120, 30_000_000, 120_000_000, 45e6))
    assert tables.status_line(uploading).endswith("checkpoint 100, 25% of step 120 at 45 MB/s")
    assert tables.status_line(STATUS).endswith("checkpoint 100")
    assert json.loads(tables.to_json(uploading))["upload"] == {
        "step": 120,
        "done": 30_000_000,
        "total": 120_000_000,
        "rate": 45e6,
    }


@pytest.mark.parametrize(
    ("amount", "told"),
    [(0.0, "0.000 USD"), (0.000031, "0.00003 USD"), (0.00094, "0.0009 USD"), (0.00096, "0.001 USD"),
     (0.0149, "0.015 USD"), (0.32, "0.32 USD"), (12.0, "12.00 USD")],
)  # fmt: skip
def test_prices_have_digits_that_tell_something(amount: float, told: str) -> None:
    assert usd(amount) == told


@pytest.mark.parametrize(
    "command",
    [
        "interrupt web",
        "shell web",
        "shell web --forward 80",
    ],
)
def test_of_several_clusters_one_is_named_by_the_option_that_names_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(AwsTarget, "names", lambda place: ("hang", "web"))
    monkeypatch.setattr(find, "account", lambda *_: AwsTarget(Aws("us-east-1")))
    for line, told in (
        (command, "name one with --name: hang, web"),
        ("report --cost", "name one: hang, web"),
    ):
        done = CliRunner().invoke(app, line.split())
        assert isinstance(done.exception, UsageError)
        assert str(done.exception) == f"there are several clusters; {told}"


SCRIPT = """\
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):  # \u2603
    loss = model(torch.randn(4, 2)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("stream", ["closed", "ascii"])
def test_a_stream_that_takes_no_text_is_no_failure(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["spotelastic", "adapt", str(tmp_path / "train.py")])
    written = io.BytesIO()
    to = None if stream == "closed" else io.TextIOWrapper(written, "ascii")
    monkeypatch.setattr(sys, "stdout", to)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    if to is not None:
        to.flush()
        assert b"# \\u2603" in written.getvalue()
    sys.stdout.close()
