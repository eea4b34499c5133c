"""What Session Manager's plugin is told."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.aws.fake_services import fake_aws

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.security import sessions
from spotelastic.errors import EnvironmentFailure

ANSWER = {"SessionId": "s-1", "TokenValue": "t", "StreamUrl": "wss://x", "ResponseMetadata": {}}


class Manager:
    meta = SimpleNamespace(endpoint_url="https://ssm.eu-west-1.amazonaws.com")

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def start_session(self, **request: Any) -> dict[str, Any]:
        self.asked = request
        return ANSWER


@pytest.fixture
def aws() -> Aws:
    return fake_aws("eu-west-1", ssm=Manager())


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = tmp_path / sessions.PLUGIN
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return str(program)


def test_the_plugin_is_told_the_session_and_what_was_asked_for(aws: Aws, plugin: str) -> None:
    program, answer, region, action, profile, request, where = sessions.forward(
        aws, "i-1", 6006, 16006
    )
    assert (program, region, action, profile) == (plugin, "eu-west-1", "StartSession", "")
    assert json.loads(answer) == {"SessionId": "s-1", "TokenValue": "t", "StreamUrl": "wss://x"}
    assert json.loads(request) == {
        "Target": "i-1",
        "DocumentName": "AWS-StartPortForwardingSession",
        "Parameters": {"portNumber": ["6006"], "localPortNumber": ["16006"]},
    }
    assert where == "https://ssm.eu-west-1.amazonaws.com"
    sessions.shell(aws, "i-1")
    assert aws.ssm.asked == {"Target": "i-1"}


def test_a_missing_plugin_is_told_before_a_session_is_opened(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFailure, match="session-manager-plugin is not installed"):
        sessions.shell(aws, "i-1")
    assert aws.ssm.asked == {}
