"""The daemon of a script that runs without an agent."""

import os
from pathlib import Path

import pytest
from support.patience import PATIENT

from spotelastic.training import environment
from spotelastic.training.environment import Ranks


def test_it_ends_although_a_forked_child_has_the_lifeline_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data loader's persistent workers live as long as the script."""
    monkeypatch.setattr(environment, "END_WITHIN", PATIENT)
    daemon = environment._OwnDaemon(Ranks(0, 1, 0, "n"), str(tmp_path / "store"), 1)
    childs = os.dup(daemon._lifeline)
    try:
        daemon.close()
    finally:
        os.close(childs)
    assert daemon._process.returncode == 0
