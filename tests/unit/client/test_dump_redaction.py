"""What a dump leaves out of the job, and keys that are known by their form."""

import pytest

from spotelastic.client.dump_archive import job_without_secrets, typed_secrets
from spotelastic.model.job import JobSpec, Settings
from spotelastic.redaction import telling, without_known_formats

SPEC = JobSpec(
    "demo", "demo", "train.py", ("--lr", "0.1", "--api-key", "abc"), "c0", Settings(1, 2), "s3://b",
    (), env={"MODE": "started", "DB": "postgres://me:pw@db"}, secrets={"HF": 3},
    setup="login hunter2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("key AKIAIOSFODNN7EXAMPLE.", "key ***."),
        ("hf_" + 20 * "a", "***"),
        ("x=sk-ant-api03-" + 20 * "b", "x=***"),
        ("ghp_" + 36 * "c", "***"),
        ("https://me:pw@host/x", "https://***@host/x"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----!", "***!"),
        ("-----BEGIN PRIVATE KEY-----\nMII", "***"),
        ('"-----BEGIN EC PRIVATE KEY-----\\nMII\\n-----END EC PRIVATE KEY-----\\n"', '"***\\n"'),
        ('"-----BEGIN PRIVATE KEY-----\\nM", "b": 2', '"***", "b": 2'),
        ("a task-of-several-words-and-more", "a task-of-several-words-and-more"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("loss 0.25 at step 100", "loss 0.25 at step 100"),
    ],
)
def test_keys_are_known_by_their_form(text: str, told: str) -> None:
    assert without_known_formats(text) == told


def test_values_that_are_plain_words_or_numbers_stay_where_they_stand() -> None:
    plain = ("started", "spot_interruption", "us-east", "0.25", "1e", "in the forward pass")
    assert telling((*plain, "hunter2", "pa$$word", "/data/x")) == (
        *("1e", "hunter2", "pa$$word", "/data/x"),
    )


def test_what_was_typed_after_a_name_of_a_secret_is_one_wherever_it_stands() -> None:
    args = ("--lr", "0.1", "--api-key", "hunter2", "--my_token=pa$$word", "--key-size", "large")
    assert typed_secrets(args) == ("hunter2", "pa$$word")


def test_the_job_is_told_without_values_and_without_what_may_hold_an_unknown_secret() -> None:
    told = job_without_secrets(SPEC, known=True)
    assert (told["env"], told["secrets"]) == (["DB", "MODE"], ["HF"])
    assert told["args"] == ["--lr", "0.1", "--api-key", "***"]
    unknown = job_without_secrets(SPEC, known=False)
    assert "left out" in str(unknown["args"]) and "left out" in str(unknown["setup"])
