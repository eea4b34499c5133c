"""What the metadata service says, document by document."""

import json
import os
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotelastic.local.base.callers import asked_owner, owner_of
from spotelastic.local.instances.metadata import Facts, Notices, RoleCredentials, read

META = "/latest/meta-data"
FACTS = Facts(
    instance="i-1",
    account="123456789012",
    region="us-east-1",
    zone="us-east-1a",
    type="g5.xlarge",
    address="127.80.0.4",
    life_cycle="spot",
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("instance-id", "i-1"),
        ("local-ipv4", "127.80.0.4"),
        ("instance-life-cycle", "spot"),
        ("placement/availability-zone", "us-east-1a"),
        ("placement/region", "us-east-1"),
        ("placement/", "availability-zone\nregion"),
        ("", "ami-id\ninstance-id\ninstance-life-cycle\ninstance-type\nlocal-ipv4\nplacement/"),
    ],
)
def test_documents_and_listings(path: str, text: str) -> None:
    assert read(FACTS, f"{META}/{path}") == text


@pytest.mark.parametrize(
    "path",
    [
        "spot/instance-action",
        "events/recommendations/rebalance",
        "autoscaling/target-lifecycle-state",
        "iam/security-credentials/",
        "tags/instance/",
        "no-such-thing",
    ],
)
def test_what_has_not_been_said_is_not_there(path: str) -> None:
    assert read(FACTS, f"{META}/{path}") is None
    assert read(FACTS, "/latest/user-data") is None
    assert read(FACTS, "/") is None


def test_an_interruption_says_when() -> None:
    facts = replace(FACTS, notices=Notices(interruption=NOON.timestamp()))
    action = json.loads(read(facts, f"{META}/spot/instance-action") or "")
    assert action == {"action": "terminate", "time": "2026-01-01T12:00:00.000Z"}


def test_a_rebalance_recommendation_is_no_interruption() -> None:
    facts = replace(FACTS, notices=Notices(rebalance=NOON.timestamp()))
    notice = json.loads(read(facts, f"{META}/events/recommendations/rebalance") or "")
    assert notice == {"noticeTime": "2026-01-01T12:00:00.000Z"}
    assert read(facts, f"{META}/spot/instance-action") is None


def test_tags_with_colons_are_listed_and_read() -> None:
    facts = replace(FACTS, tags={"spotelastic:role": "worker", "Name": "w"})
    assert read(facts, f"{META}/tags/instance/") == "Name\nspotelastic:role"
    assert read(facts, f"{META}/tags/instance/spotelastic:role") == "worker"


def test_credentials_are_listed_by_role() -> None:
    credentials = RoleCredentials("worker", "AKIA", "secret", "token", NOON, NOON)
    facts = replace(FACTS, credentials=lambda: credentials)
    assert read(facts, f"{META}/iam/security-credentials/") == "worker"
    document = json.loads(read(facts, f"{META}/iam/security-credentials/worker") or "")
    assert (document["Code"], document["AccessKeyId"], document["Token"]) == (
        "Success",
        "AKIA",
        "token",
    )


def test_the_identity_document_names_the_instance() -> None:
    document = json.loads(read(FACTS, "/latest/dynamic/instance-identity/document") or "")
    assert (document["instanceId"], document["region"], document["privateIp"]) == (
        "i-1",
        "us-east-1",
        "127.80.0.4",
    )


def test_the_kernel_tells_who_owns_a_connection_as_its_table_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        served, _ = server.accept()
        with served:
            ends = client.getsockname(), served.getsockname()
            with client:
                table = Path("/proc/net/tcp").read_text()
                assert asked_owner(*ends) == owner_of(*ends, table) == os.getuid()
            nobody = ("127.0.0.1", 1), ends[1]
            assert asked_owner(*nobody) is owner_of(*nobody, table) is None
