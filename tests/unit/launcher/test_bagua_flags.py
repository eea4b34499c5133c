"""Flags of Bagua's launcher, which `spotelastic run` accepts."""

from pathlib import Path
from typing import Any

import pytest

from spotelastic.errors import UsageError
from spotelastic.launcher import bagua
from spotelastic.launcher.flags import parse


def options(*args: str) -> Any:
    return parse([*args, "train.py"], {})


def test_baguas_variables_are_those_of_its_own_launcher() -> None:
    told = options(
        "--autotune_level=1", "--default_bucket_size", "1024", "--is_output_autotune_log"
    )
    assert bagua.environment(told, {}) == {
        "BAGUA_SERVICE_PORT": "29501",
        "BAGUA_DEFAULT_BUCKET_SIZE": "1024",
        "BAGUA_AUTOTUNE": "1",
        "BAGUA_AUTOTUNE_MAX_SAMPLES": "60",
        "BAGUA_AUTOTUNE_SAMPLING_CONFIDENCE_TIME_S": "5.0",
        "BAGUA_AUTOTUNE_WARMUP_TIME_S": "30.0",
        "BAGUA_IS_OUTPUT_AUTOTUNE_LOG": "1",
        "AUTO_TUNE_SERVER_ADDR": "${master_addr}:29501",
    }
    assert bagua.environment(options(), {}) == {}


def test_baguas_network_plug_in_is_found_in_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="--enable-bagua-net"):
        bagua.environment(options("--enable_bagua_net"), {})
    (tmp_path / "bagua_core").mkdir()
    (tmp_path / "bagua_core" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    for spelling in ("--enable_bagua_net", "--bagua-net_switch_on"):
        env = bagua.environment(options(spelling), {"LD_LIBRARY_PATH": "/usr/x"})
        assert env["LD_LIBRARY_PATH"] == f"{tmp_path}/bagua_core/data/bagua-net:/usr/x"
