"""Variables, secrets and folders, as `up` is given them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from spotelastic.client.config import variables
from spotelastic.errors import UsageError
from spotelastic.redaction import redactor


def test_a_pair_wins_over_the_file_and_a_secret_leaves_the_variables(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        "# a comment\n\nexport A=1\nB = \"two words\" \nC=it's # said\nTOKEN='abc def ghi'\nD=x=y\n"
    )
    env, secrets = variables.variables(
        ["A=7", "HERE"], file, ["TOKEN", "KEY"], {"HERE": "here", "KEY": "0123456789"}
    )
    assert env == {"A": "7", "B": "two words", "C": "it's", "D": "x=y", "HERE": "here"}
    assert secrets == {"TOKEN": "abc def ghi", "KEY": "0123456789"}


@pytest.mark.parametrize(
    ("pairs", "secrets", "message"),
    [
        (["9=x"], [], "--env 9: the name of a variable"),
        (["GONE"], [], "--env GONE: there is no such variable here"),
        ([], ["GONE"], "--secret GONE: there is no such variable here: export it first"),
        (["PIN=1234"], ["PIN"], "--secret PIN: its value is shorter than 6"),
        ([], ["A-B"], "--secret A-B: the name of a variable"),
    ],
)
def test_a_mistake_is_one_line(pairs: list[str], secrets: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        variables.variables(pairs, None, secrets, {})
    assert "\n" not in str(caught.value)


def test_a_line_of_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=1\nnot a variable\n")
    with pytest.raises(UsageError, match=r"\.env, line 2: expected NAME=VALUE"):
        variables.read(file)
    with pytest.raises(UsageError, match="cannot be read"):
        variables.read(tmp_path / "absent")


def test_a_file_of_variables_is_read_as_other_tools_read_it(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes(
        b"\xef\xbb\xbfPW=\"s3cretpass\" # prod\r\nexport\tA=b\n\nB=a#b\nC='x'  # y\n"
        b'KEY="-----BEGIN\nMII=\n-----END"\nURL=http://${A}:1\n'
    )
    assert variables.read(file) == {
        "PW": "s3cretpass",
        "A": "b",
        "B": "a#b",
        "C": "x",
        "KEY": "-----BEGIN\nMII=\n-----END",
        "URL": "http://b:1",
    }


@pytest.mark.parametrize("line", ["NAME", "9=x", "A-B=x", "=x", 'A="open'])
def test_a_line_that_gives_no_variable_is_refused_by_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"A=1\n# c\n\n{line}\n")
    with pytest.raises(UsageError, match="line 4: expected NAME=VALUE"):
        variables.read(file)


def test_folders_in_s3_are_a_bucket_and_a_prefix() -> None:
    urls = ["s3://my-data", "s3://my-data/train/x", "s3://my-data/train/x"]
    assert variables.folders("read", urls) == ("my-data/", "my-data/train/x")


@pytest.mark.parametrize("url", ["my-data", "s3://", "s3://B/x", "s3://data/*", "gs://data", ""])
def test_what_is_no_folder_in_s3_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--write"):
        variables.folders("write", [url])


def test_secrets_are_blotted_out_wherever_they_stand() -> None:
    blot = redactor(["hunter22", "hunter22-and-more", "-----BEGIN KEY\nMIIEvQIBADAN\n-----END"])
    assert blot("a=hunter22, b=hunter22-and-more.") == "a=***, b=***."
    assert blot("line: MIIEvQIBADAN") == "line: ***"
    assert blot("nothing here") == "nothing here"


SECRETS = ["tok/en+1 é", 'pa"ss\\word', "line one\nline two!"]
WRITERS = [
    str,
    json.dumps,
    lambda value: json.dumps(value, ensure_ascii=False),
    repr,
    quote,
    quote_plus,
    lambda value: quote(value, safe=""),
    lambda value: re.sub("%..", lambda found: found[0].lower(), quote(value)),
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("written", WRITERS)
def test_a_secret_is_recognized_in_json_python_and_urls(
    secret: str, written: Callable[[str], str]
) -> None:
    text = redactor([secret])(f"at https://host/?a=1&key={written(secret)}")
    assert text.startswith("at https://host/?a=1&key=")
    assert text.removeprefix("at https://host/?a=1&key=").strip("\"'*\n") == ""
