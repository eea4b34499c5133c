"""URLs of `--notify`: what is taken, and that a refusal shows nothing of them."""

import subprocess
import sys

import pytest

from spotelastic.errors import UsageError
from spotelastic.notifications.urls import named, topics

SECRET = "xoxb-s3cr3t-t0k3n"
ARN = "arn:aws:sns:eu-west-1:123456789012:alerts"


def test_a_receiver_is_called_by_its_number_and_service() -> None:
    given = [f"json://host/{SECRET}", f"ntfy://{SECRET}", f"sns:{ARN}"]
    assert list(named(given, {})) == ["1-json", "2-ntfy", "3-sns"]


def test_a_variable_holds_a_url() -> None:
    url = f"json://host/{SECRET}"
    assert named(["HOOK"], {"HOOK": f" {url}\n"}) == {"1-json": url}


def test_what_is_given_twice_is_told_once() -> None:
    assert len(named(["json://host", "json://host"], {})) == 1


def test_topics_are_found_in_each_partition() -> None:
    china = ARN.replace("aws:sns:eu-west-1", "aws-cn:sns:cn-north-1")
    assert topics([f"sns:{ARN}", f"sns:{china}", "json://host"]) == [china, ARN]


WRONG = (
    f"nosuchservice://{SECRET}/a",
    f"https:/{SECRET}",
    f"slack:{SECRET}",
    f"tgram://{SECRET}",  # of which parts are missing
    f"mailto://{SECRET}",
    f"sns:{SECRET}",
    f"sns:arn:aws:sqs:eu-west-1:123456789012:{SECRET}",
    f"{SECRET} with blanks",
    f"://{SECRET}",
)


def test_what_is_not_understood_is_refused_in_one_line_that_shows_none_of_it() -> None:
    code = (
        "import sys; from spotelastic.notifications.urls import named\n"
        "for url in sys.argv[1:]:\n"
        "    try: named(['json://host', url], {})\n"
        "    except Exception as error: print(type(error).__name__, error)"
    )
    command = [sys.executable, "-c", code, *WRONG]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == len(WRONG)
    assert all(line.startswith("UsageError the second --notify") for line in lines)
    assert SECRET not in done.stdout + done.stderr
    assert done.stderr == "", "apprise itself says nothing"


@pytest.mark.parametrize("variables", [{}, {"HOOK": ""}, {"HOOK": "  "}])
def test_a_variable_that_is_not_there_is_named(variables: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--notify HOOK: there is no such variable here"):
        named(["HOOK"], variables)
