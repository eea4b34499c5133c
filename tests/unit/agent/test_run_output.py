"""Where the output of workers goes, and which of it is shown."""

from typing import Any

import pytest

from spotelastic.agent.workers.output import Output, Selection
from spotelastic.errors import UsageError
from spotelastic.launcher import options as launcher_options
from spotelastic.launcher.flags import parse


def options(*args: str) -> Any:
    return parse([*args, "train.py"], {})


def test_streams_share_a_file_until_they_are_told_apart() -> None:
    output = launcher_options.output(options("-r", "0:1,1:3", "--tee", "0:2"))
    assert output.redirects == Selection(ranks={0: 1, 1: 3})
    routes = {
        (local_rank, stream): (route.file, route.shown)
        for local_rank in (0, 1, 2)
        for stream in ("stdout", "stderr")
        for route in [output.route(local_rank + 4, local_rank, stream)]
    }
    assert routes == {
        (0, "stdout"): ("rank-4.stdout.log", False),
        (0, "stderr"): ("rank-4.stderr.log", True),
        (1, "stdout"): ("rank-5.stdout.log", False),
        (1, "stderr"): ("rank-5.stderr.log", False),
        (2, "stdout"): ("rank-6.log", True),
        (2, "stderr"): ("rank-6.log", True),
    }


def test_ranks_that_are_not_shown_are_still_written() -> None:
    output = launcher_options.output(options("--local-ranks-filter", "1"))
    assert not output.route(0, 0, "stdout").shown
    assert output.route(0, 0, "stdout").file == "rank-0.log"
    assert output.route(1, 1, "stdout").shown


def test_a_comma_that_is_meant_is_doubled() -> None:
    output = launcher_options.output(options("--duplicate-stdout-filters", "loss,a,,b"))
    assert output.filters["stdout"] == ("loss", "a,b")


@pytest.mark.parametrize("flag", ["--tee", "--redirects", "--local-ranks-filter"])
@pytest.mark.parametrize("text", ["4x", "0:9", "a:1", "1,"])
def test_a_selection_that_is_none(flag: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{flag} {text}"):
        launcher_options.output(options(flag, text))


def test_the_prefix_of_lines() -> None:
    assert launcher_options.prefix(options(), {})(5, 1) == "[5] "
    teed = launcher_options.prefix(options("--tee", "3", "--role", "trainer"), {})
    assert teed(5, 1) == "[trainer1]:"
    variable = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}/${local_rank}> "}
    assert launcher_options.prefix(options(), variable)(5, 1) == "<5/1> "


def test_without_a_wish_all_output_is_shown() -> None:
    route = Output().route(7, 1, "stderr")
    assert (route.file, route.shown, route.needles) == ("rank-7.log", True, ())
