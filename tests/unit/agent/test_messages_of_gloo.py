"""What is told of a collective that failed: gloo's reason, without its advice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spotelastic.agent.workers.pool import read_error_file
from spotelastic.agent.workers.trouble import without_advice

PEER_GOES = """
import os, sys
import torch, torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
try:
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        os._exit(3)
    dist.all_reduce(torch.ones(1))
except RuntimeError as error:  # of the first one, where the peer's end is noticed before it returns
    print(error)
"""


def test_a_peer_that_goes_is_told_in_a_few_words(tmp_path: Path) -> None:
    """With the text of the gloo that is installed."""
    command = (sys.executable, "-c", PEER_GOES)
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    said = ranks[0].communicate(timeout=120)[0]
    ranks[1].communicate(timeout=120)
    assert "remote worker" in said, "gloo still gives its advice"
    told = without_advice(said).strip()
    assert "closed by peer" in told or "reset by peer" in told
    assert not any(word in told for word in ("GLHF", "typically", "pair.cc", "reporting"))


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (
            "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
            "Connection closed by peer [127.0.0.1]:10911. This is typically caused by a remote "
            "worker crashing. Check the logs of the remote worker before reporting an error. "
            "GLHF! 🏖️",
            "RuntimeError: Connection closed by peer [127.0.0.1]:10911",
        ),
        (
            "RuntimeError: [/src/gloo/gloo/transport/tcp/pair.cc:537] Read error [fd00::1]:3228: "
            "Connection reset by peer. This is typically caused by a remote worker hanging or "
            "bugs in the application. Check the logs of the remote worker before reporting an "
            "error. GLHF! 🏖️ (memory was short)",
            "RuntimeError: Read error [fd00::1]:3228: Connection reset by peer (memory was short)",
        ),
        ("ValueError: [/gloo/x] GLHF!", "ValueError: [/gloo/x] GLHF!"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_only_what_is_gloos_own_goes(tmp_path: Path, told: str, kept: str) -> None:
    assert without_advice(told) == kept
    (tmp_path / "error.json").write_text(json.dumps({"message": {"message": told}}))
    assert read_error_file(tmp_path / "error.json") == (kept, "")
