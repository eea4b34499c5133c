"""Log records: readable lines for people, complete JSON records for programs, and no secrets."""

import io
import json
import logging
import sys
import threading
from typing import Any

import pytest
from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.log_records import JSON, LogStyle, logging_to

from spotelastic.redaction import redactor

logger = logging.getLogger("spotelastic.agent.somewhere")


def records(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_people_read_the_message_behind_the_name_of_its_program() -> None:
    lines: list[str] = []
    with logging_to("[spotelastic] ", LogStyle(), lines.append):
        logger.debug("a detail")
        logger.info("round 3: %s of 4", 2)
        logger.error("100% of it failed:\n  line 2")
    assert lines == [
        "[spotelastic] round 3: 2 of 4",
        "[spotelastic] 100% of it failed:\n  line 2",
    ]


def test_every_record_has_the_same_fields_and_says_where_it_was_made() -> None:
    lines: list[str] = []
    with logging_to("", LogStyle(JSON, "debug"), lines.append):
        logger.debug("starts")
        log_records.node("i-1")
        log_records.entered(7, "loss")
        logging.getLogger("spotelastic_checkpoints.daemon").warning("two\nlines")
        try:
            raise ValueError("no such column")
        except ValueError:
            logger.error("failed", exc_info=True)
    starts, daemon, failed = records(lines)
    assert (starts["node"], starts["round"], starts["cause"]) == ("", None, "")
    assert (daemon["node"], daemon["round"], daemon["cause"]) == ("i-1", 7, "loss")
    assert (daemon["level"], daemon["logger"]) == ("warning", "spotelastic_checkpoints.daemon")
    assert daemon["message"] == "two\nlines" and daemon["time"].endswith("Z")
    assert set(starts) == set(daemon) == set(failed) - {"exception"}
    assert failed["exception"].endswith("ValueError: no such column")
    assert all("\n" not in line for line in lines)


def test_a_secret_is_hidden_in_messages_and_tracebacks_of_both_formats() -> None:
    for form in log_records.FORMATS:
        lines: list[str] = []
        with logging_to("", LogStyle(form), lines.append):
            log_records.hide(redactor(['hun"ter22']))
            try:
                raise ValueError('the password is hun"ter22')
            except ValueError as error:
                logger.warning("%s", error, exc_info=True)
        assert lines and "ter22" not in "".join(lines) and "***" in lines[0]


def test_bytes_that_are_no_text_are_logged_all_the_same() -> None:
    lines: list[str] = []
    with logging_to("", LogStyle(JSON), lines.append):
        logger.info("no file \udcff.py")
    assert records(lines)[0]["message"] == "no file \\udcff.py"


def test_the_user_s_own_logging_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    root, mine, lines = logging.getLogger(), logging.getLogger("theirs"), list[str]()
    before = (list(root.handlers), root.level)
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with logging_to("", LogStyle(), lines.append):
        mine.warning("theirs")
        assert (list(root.handlers), root.level) == before
    assert lines == []
    logger.info("after the block")
    assert lines == [] and logging.getLogger("spotelastic").handlers == []


def test_a_log_that_takes_no_more_ends_nobody() -> None:
    def full(line: str) -> None:
        raise OSError(28, "No space left on device")

    with logging_to("", LogStyle(), full):
        logger.error("lost")


def test_threads_may_log_and_change_the_round_at_once() -> None:
    lines: list[str] = []
    with logging_to("", LogStyle(JSON), lines.append):

        def log(number: int) -> None:
            for step in range(50):
                log_records.entered(step, "loss")
                logger.info("%d", number)

        threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(records(lines)) == 200


@pytest.mark.parametrize(
    ("environ", "style"),
    [
        ({}, LogStyle("text", "info")),
        ({"SPOTELASTIC_LOG_FORMAT": "JSON"}, LogStyle("json", "info")),
        ({"SPOTELASTIC_LOG_LEVEL": "debug"}, LogStyle("text", "debug")),
        ({"SPOTELASTIC_LOG_FORMAT": "xml", "SPOTELASTIC_LOG_LEVEL": ""}, LogStyle()),
    ],
)
def test_a_process_that_has_no_flags_goes_by_its_variables(
    environ: dict[str, str], style: LogStyle
) -> None:
    assert LogStyle.of(environ) == style
    assert LogStyle.of(style.environment()) == style, "as it is passed on"


def test_the_message_of_a_record_is_found_on_an_instance_s_console() -> None:
    lines: list[str] = []
    with logging_to("", LogStyle(JSON), lines.append):
        logger.error("no torch")
    assert log_records.message_of(f"[ 12.3] spotelastic[812]: {lines[0]}") == "no torch"
    assert log_records.message_of("boot: no torch") is None
    assert log_records.message_of('{"time": cut') is None
