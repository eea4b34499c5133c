"""`spotelastic doctor --notify`, and that nothing of the client shows a URL."""

import json
from pathlib import Path

import pytest
from support.processes.ports import held_ports
from support.processes.webhooks import TOKEN, webhook

from spotelastic.aws.base.clients import Aws
from spotelastic.cli.main import run_command
from spotelastic.client.config import config_file
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check
from spotelastic.client.trial_notification import try_receivers
from spotelastic.errors import UsageError

URL = f"json://127.0.0.1/{TOKEN}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_those_of_the_file_are_tried_and_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with webhook() as hook, held_ports(1) as (port,):
        (folder / ".env").write_text(f"HOOK={hook.url}\n")
        dead = f"json://127.0.0.1:{port}/{TOKEN}"
        (folder / "spotelastic.toml").write_text(
            f"notify = ['HOOK', '{dead}']\nenv-file = '.env'\n"
        )
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(run_command(["doctor", "--notify", "--json"]))
    assert ended.value.code == 2
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found.keys() == {"1-json", "2-json"}
    assert found["1-json"] == "" != found["2-json"]
    assert hook.titles == ["spotelastic: this is a test"]
    assert TOKEN not in told.out + told.err


def test_nobody_to_tell_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="no receiver is configured: give a URL, or the variable"):
        try_receivers((), {}, Aws())


@pytest.mark.parametrize("wrong", [{"url": URL}, [[URL]]])
def test_a_value_of_the_wrong_kind_is_not_shown(wrong: object, folder: Path) -> None:
    with pytest.raises(UsageError, match="--notify …: ") as caught:
        JobConfig(notify=wrong)  # type: ignore[arg-type]
    assert TOKEN not in str(caught.value)
    (folder / "spotelastic.toml").write_text(f"notify = [['{URL}']]\n")
    with pytest.raises(UsageError, match="notify = …: needs a text"):
        config_file.defaults(folder, {})


def test_no_value_of_the_client_shows_a_url(folder: Path) -> None:
    (folder / "train.py").write_text("print(1)\n")
    config = JobConfig("train.py", local=True, min=1, notify=[URL])
    job = check(config, folder)
    assert job.notify == {"1-json": URL}
    assert TOKEN not in repr(config) + repr(job)
