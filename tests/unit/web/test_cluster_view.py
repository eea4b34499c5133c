"""What a person sees of a cluster, as values."""

from dataclasses import replace

import msgspec
import pytest
from spotelastic_checkpoints.catalog.catalog import StepEntry
from support.clusters.published_cluster import (
    BEGAN,
    CHECKPOINTS,
    NEW,
    PUBLISHED,
    STATUS,
    happened,
    very_large,
)

from spotelastic.model.in_place import Rehearsal
from spotelastic.model.progress import Cost, Event, Upload
from spotelastic.web.page.render import report_page, sections
from spotelastic.web.view import words
from spotelastic.web.view.cluster_view import cluster_view

NOW = BEGAN + 101


def test_a_job_that_runs() -> None:
    view = cluster_view(PUBLISHED, NOW)
    assert (view.state, view.tone, view.has_ended) == ("running", "good", False)
    assert [(each.name, each.value, each.note) for each in view.figures] == [
        ("Step", "120", "250 ms a step"),
        ("Loss", "0.9500", ""),
        ("Nodes training", "1", "round 3 · 1 to 2 wanted"),
        ("Goodput", "91.1%", "2 interruptions, 8 steps repeated"),
        ("Checkpoint", "60", "1 min 5 s ago"),
        ("Cost so far", "$0.030", "$0.25 an hour · workers 60% below on demand"),
    ]
    assert view.warnings == ()
    assert [row.step for row in view.checkpoints or ()] == ["60", "40"]
    assert (view.checkpoints or ())[0].marks == ("latest", "pinned")
    assert (view.checkpoints or ())[0].verified == "41 s ago"
    assert [row.node for row in view.interruptions] == ["i-1", "i-2"], "the newest first"
    assert (view.interruptions[0].pause, view.interruptions[0].cost) == ("3.50 s", "–")
    assert view.training == ("i-3",)
    assert view.ranks == (0, 1)


@pytest.mark.parametrize("outcome", ["equal", "different"])
def test_a_step_that_was_made_again(outcome: str) -> None:
    found = Rehearsal(2, 3, outcome, ("step 2:", "lr is <0.1>."))
    told = Event(BEGAN, "rehearsed", "step 2", "i-3", {"outcome": outcome})
    status = replace(STATUS, rehearsal=found)
    it = replace(PUBLISHED, status=status, events=(*PUBLISHED.events, told))
    view = cluster_view(it, NOW)
    differs = outcome == "different"
    said = "differs" if differs else "the same"
    figure = ("Rehearsal", said, "step 2 was made twice on 3 ranks")
    assert figure in [(each.name, each.value, each.note) for each in view.figures]
    told_first = view.headline.line if view.headline is not None else None
    assert told_first == ("step 2:\n  lr is <0.1>." if differs else None)
    assert view.tone == ("bad" if differs else "good")
    (row,) = (row for row in view.events if row.kind == "rehearsed")
    assert row.weight == ("alert" if differs else "detail")
    assert ("lr is &lt;0.1&gt;." in report_page(view)) is differs


def test_the_fingerprint_of_what_was_trained() -> None:
    assert PUBLISHED.report is not None
    assert "Fingerprint" not in report_page(cluster_view(PUBLISHED, NOW))
    its = "0123456789abcdef" * 4
    view = cluster_view(replace(PUBLISHED, report=replace(PUBLISHED.report, fingerprint=its)), NOW)
    assert ("Fingerprint", its[:8], its) in [(e.name, e.value, e.note) for e in view.figures]
    assert its in report_page(view)


def test_a_job_whose_end_is_known_says_how_far_until_when_and_for_how_much() -> None:
    known = replace(STATUS, total=1000, pace=0.5, began_at=BEGAN + 10, samples_per_second=1234.5)
    view = cluster_view(replace(PUBLISHED, status=known), NOW)
    figures = {each.name: (each.value, each.note) for each in view.figures}
    assert figures["Step"] == ("120", "of 1,000 · 250 ms a step · 1,234 samples a second")
    until = f"{words.minute(NOW + 440, NOW)} {words.zone(NOW)}"
    assert figures["Left, about"] == ("7 min 20 s", f"12% done · 1 min 31 s so far · until {until}")
    assert figures["Cost so far"][1].startswith("about $0.061 in all · $0.25 an hour")
    over = replace(known, state="succeeded", step=1000)
    assert "Left, about" not in {
        each.name for each in cluster_view(replace(PUBLISHED, status=over), NOW).figures
    }


def test_a_loss_that_is_no_number_is_seen_at_once() -> None:
    diverged = replace(STATUS, loss=None, not_finite=41)
    view = cluster_view(replace(PUBLISHED, status=diverged), NOW)
    assert ("Loss", "NaN", "or infinite, since step 41") in [
        (each.name, each.value, each.note) for each in view.figures
    ]
    assert (view.tone, view.title) == ("bad", "demo: loss not finite")


def test_the_error_is_read_before_its_traceback() -> None:
    trace = "\n".join(["rank 0 on i-1", *("  a frame",) * 40, "OutOfMemoryError: CUDA"])
    failed = replace(STATUS, state="failed", error="OutOfMemoryError: CUDA", reason=trace)
    page = report_page(cluster_view(replace(PUBLISHED, status=failed), NOW))
    assert page.index("The job has failed: OutOfMemoryError: CUDA") < page.index("a frame")
    assert "<code>spotelastic restart demo</code> goes on from step 60" in page
    assert "<title>demo: failed" in page


def test_hours_are_shown_where_prices_are_not_known() -> None:
    cost = Cost("demo", 0.0, 0.0, 0.0, spot_hours=1.5, on_demand_hours=0.5, interruptions_usd=0.0)
    view = cluster_view(replace(PUBLISHED, cost=cost), NOW)
    assert (view.figures[-1].name, view.figures[-1].value) == ("Node-hours", "2")
    (row,) = view.costs
    assert (row.so_far, row.note) == (
        "–",
        "1.5 spot, 0.5 on-demand node-hours; prices are not known",
    )


def test_commits_that_follow_each_other_are_one_event() -> None:
    told = [row.message for row in cluster_view(PUBLISHED, NOW).events]
    assert "2 checkpoints saved, steps 40 to 60" in told
    assert len(told) == len(PUBLISHED.events) - 1
    few = cluster_view(PUBLISHED, NOW, most_events=3)
    assert (len(few.events), few.earlier_events) == (3, len(PUBLISHED.events) - 3)


def test_what_is_routine_is_one_row_and_a_round_is_told_once() -> None:
    routine = [
        happened(60 + n, ("committed", "schedule", "restored")[n % 3], step=n) for n in range(30)
    ]
    proposed = happened(93, "round", message="round 4 proposed", phase="proposed", incarnation="r4")
    started = happened(93, "round", message="round 4 started", phase="started", incarnation="r4")
    dropped = happened(94, "round", message="round 5 proposed", phase="proposed", incarnation="r5")
    events = (*routine, proposed, started, dropped)
    rows = cluster_view(replace(PUBLISHED, events=events), NOW).events
    assert [(row.kind, row.message) for row in rows] == [
        ("round", "round 5 proposed"),
        ("round", "round 4 started"),
        (
            "routine",
            "10 checkpoints saved, steps 0 to 27; 10 changes of the intervals between saves; "
            "10 rounds restored",
        ),
    ]


def test_what_the_peers_of_a_lost_node_say_is_no_fault_of_its_own() -> None:
    lost = happened(50, "loss", "i-1")
    peer = happened(51, "failure", "i-2", message="i-2: closed by peer", lost_peer=True)
    own = happened(52, "failure", "i-2", message="i-2: ValueError", lost_peer=False)
    alone = happened(500, "failure", "i-2", message="i-2: closed by peer", lost_peer=True)
    view = cluster_view(replace(PUBLISHED, events=(lost, peer, own, alone)), NOW)
    assert [row.weight for row in view.events] == ["alert", "alert", "detail", "alert"]
    assert [row.kind for row in view.events][1:] == ["worker failed", "worker failed", "node lost"]


def test_events_are_in_the_order_of_their_times() -> None:
    late = happened(1, "launch", "i-1"), happened(0.5, "prepare", "i-1"), happened(9, "job")
    view = cluster_view(replace(PUBLISHED, events=(late[2], late[1], late[0])), NOW)
    assert [row.kind for row in view.events] == ["job", "launch", "prepare"]


def test_a_cluster_of_very_many_events_has_a_page_of_bounded_size() -> None:
    """Hundreds of nodes and interruptions fold; what is left out is counted."""
    view = cluster_view(very_large(), BEGAN + 1001)
    written = sections(view)
    assert sum(map(len, written.values())) < 300_000
    assert (len(view.interruptions), view.earlier_interruptions) == (100, 900)
    assert "1,000, the newest first" in written["interruptions"]
    assert "Not shown: 900 earlier interruptions." in written["interruptions"]
    assert [row.state for row in view.nodes[:4]] == ["waiting"] * 4, "what does not train is first"
    assert written["nodes"].count("87%, 550 GB of 687 GB") == 200


def test_a_cluster_that_boots_has_nothing_to_show_yet() -> None:
    view = cluster_view(NEW, BEGAN + 5)
    assert (view.tone, view.chart, view.timeline, view.costs) == ("busy", None, None, ())
    assert [each.value for each in view.figures] == ["0", "0", "–"]


def test_what_is_not_as_it_should_be_is_said() -> None:
    silent = (
        "No controller has reported for 1 min 30 s. Training continues without one, but no node is "
        "bought or replaced."
    )
    late = cluster_view(PUBLISHED, STATUS.at + 90)
    assert (late.headline is not None and late.headline.line, late.tone) == (silent, "warn")
    short = replace(PUBLISHED, status=replace(STATUS, short_since=BEGAN + 40))
    both = cluster_view(short, STATUS.at + 90)
    assert both.headline is not None
    assert both.headline.line == "There have been fewer nodes than wanted for 2 min 30 s."
    assert [each.line for each in both.others] == [silent]
    assert both.warnings == ()
    gone = cluster_view(replace(PUBLISHED, is_gone=True), STATUS.at + 9999)
    assert (gone.headline, gone.tone) == (None, "good")
    assert gone.warnings == ("This cluster is gone. These are its last records.",)


def test_a_node_that_has_notice_says_how_soon_it_goes() -> None:
    (node, control) = STATUS.nodes
    for left, told in ((40.5, "leaves in 40 s"), (-3.0, "may be gone any moment")):
        leaving = replace(STATUS, nodes=(replace(node, leaves_at=NOW + left), control))
        rows = cluster_view(replace(PUBLISHED, status=leaving), NOW).nodes
        assert [(row.leaves, row.type) for row in rows] == [(told, "g5.xlarge"), ("", "–")]


def test_an_upload_is_told_by_its_share_and_speed() -> None:
    upload = replace(STATUS, upload=Upload(80, 50_000_000, 200_000_000, 12_000_000))
    figures = cluster_view(replace(PUBLISHED, status=upload), NOW).figures
    assert ("60", "25% of step 80 at 12 MB/s") in {(each.value, each.note) for each in figures}


def test_the_newest_checkpoint_is_the_same_in_figures_and_table() -> None:
    listed = replace(PUBLISHED, status=replace(STATUS, committed=40))
    view = cluster_view(listed, NOW)
    (figure,) = [each for each in view.figures if each.name == "Checkpoint"]
    assert figure.value == (view.checkpoints or ())[0].step == "60"


def test_of_a_job_that_has_ended_no_time_runs_on() -> None:
    ended = replace(PUBLISHED, status=replace(STATUS, state="failed"))
    first, later = cluster_view(ended, NOW), cluster_view(ended, NOW + 600)
    assert first == later
    assert first.tone == "bad"
    assert ("Rounds", "3") in {(each.name, each.value) for each in first.figures}


def test_what_has_ended_had_one_node_or_more() -> None:
    ended = replace(PUBLISHED, status=replace(STATUS, state="stopped"))
    for sizes, note in (((1, 1), "1 node"), ((2, 2), "2 nodes"), ((1, 4), "1 to 4 nodes")):
        figures = cluster_view(replace(ended, sizes=sizes), NOW).figures
        assert [each.note for each in figures if each.name == "Rounds"] == [note]


def test_checkpoints_that_were_not_listed_differ_from_none() -> None:
    assert cluster_view(replace(PUBLISHED, checkpoints=None), NOW).checkpoints is None
    assert cluster_view(replace(PUBLISHED, checkpoints=()), NOW).checkpoints == ()
    retired = (msgspec.structs.replace(CHECKPOINTS[0], state="retired"), CHECKPOINTS[1])
    rows = cluster_view(replace(PUBLISHED, checkpoints=retired), NOW).checkpoints
    assert [row.step for row in rows or ()] == ["60"]


def test_checkpoints_from_which_the_run_did_not_go_on_are_marked() -> None:
    entries = tuple(
        StepEntry(epoch, step, "committed") for epoch, step in ((1, 20), (1, 40), (2, 30), (2, 50))
    )
    rows = cluster_view(replace(PUBLISHED, checkpoints=entries), NOW).checkpoints
    assert [(row.step, row.marks) for row in rows or ()] == [
        ("50", ()),
        ("30", ()),
        ("40", ("abandoned",)),
        ("20", ()),
    ]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0 s"),
        (0.594, "0.59 s"),
        (12.4, "12 s"),
        (59.9, "1 min"),
        (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"),
        (3 * 86400.0, "3 d"),
    ],
)
def test_spans(seconds: float, told: str) -> None:
    assert words.span(seconds) == told


def test_another_day_has_its_date() -> None:
    assert words.moment(BEGAN, BEGAN + 5).count(":") == 2
    assert " " in words.moment(BEGAN - 3 * 86400, BEGAN)


def test_a_text_cannot_turn_the_page_around() -> None:
    assert words.plain("a\u202eb\x00c\x1b[31md\ud800\n\te") == "a�b�c�[31md�\n\te"
    assert words.short("i-0a1b2c3d4e5f60718") == "i-0a1b2c3d4e5f60718"
    assert words.short("train-gpt-workers-27f39") == "…-gpt-workers-27f39"
    assert words.plain("naïve 漢字 🙂 👩\u200d🚀") == "naïve 漢字 🙂 👩\u200d🚀"


def test_a_fault_is_told_from_what_is_usual() -> None:
    events = (happened(1, "loss", "i-1"), happened(2, "job"), happened(3, "prepare", "i-1"))
    view = cluster_view(replace(PUBLISHED, events=events), NOW)
    assert [row.weight for row in view.events] == ["detail", "milestone", "alert"]


def test_why_a_job_stays_in_its_region_is_told_until_it_has_ended() -> None:
    told = replace(PUBLISHED, regions="stays in us-east-1: 2 nodes")
    view = cluster_view(told, NOW)
    assert view.regions == "stays in us-east-1: 2 nodes"
    assert "regions: stays in us-east-1: 2 nodes" in report_page(view)
    assert "regions:" not in report_page(cluster_view(PUBLISHED, NOW))
    over = replace(told, status=replace(PUBLISHED.status, state="succeeded"))
    assert cluster_view(over, NOW).regions == ""
