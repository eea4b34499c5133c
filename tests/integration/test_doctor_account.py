"""`doctor` looks at an account, and changes nothing in it."""

from pathlib import Path

import boto3
from support.aws.account import REGION, account

from spotelastic.client.doctor.examine import Needs, examine, looks


def test_an_account_is_looked_at_and_stays_as_it_was(tmp_path: Path) -> None:
    needs = Needs(aws=True, region=REGION, types=("g5.xlarge",))
    with account(tmp_path):
        found = examine([look for look in looks(needs) if look.part == "AWS"])
        assert boto3.client("s3").list_buckets()["Buckets"] == []
    told = {each.check: each for each in found.findings}
    assert {check: each.state for check, each in told.items()} == {
        "credentials": "ok",
        "clock": "ok",
        "bucket": "ok",
        "spot quota": "ok",
        "control nodes": "ok",
        "network": "ok",
        "event rules": "ok",
    }
    assert REGION in told["credentials"].found
    assert "g5.xlarge (G and VT: " in told["spot quota"].found
    assert "t3.small (Standard: " in told["control nodes"].found
    assert found.exit_code == 0
