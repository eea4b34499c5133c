"""What the tutorials tell a reader to do works, and prints what they say."""

import subprocess
from pathlib import Path

import pytest
from support.processes.tutorials import PAGES, blocks, environment_of, follow

NOT_TRIED = {
    (
        'make install TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"   '
        "# with a GPU: make install"
    ): "the tests have installed it",
    "spotelastic dashboard tutorial": "it stays until Ctrl-C",
    "spotelastic dashboard train": "it stays until Ctrl-C",
    "python3 -m venv ~/spotelastic": "the tests have installed it",
    "aws configure sso --profile training": "needs an AWS account",
    "spotelastic doctor --aws": "needs an AWS account",
    "QUOTA=L-3819A6DF  # All G and VT Spot Instance Requests": "needs an AWS account",
    "spotelastic rehearse train.py": "it takes a minute",
    "spotelastic rehearse train.py --epochs 2": "it takes a minute",
    "spotelastic ls": "with its last cluster the local cloud has ended",
}
"""First lines of the blocks that are not run here, by the reasons that the pages' sources give."""


def test_what_is_not_tried_is_known() -> None:
    pages = [blocks(page) for page in PAGES.glob("*.md")]
    assert all(any(block.language == "sh" for block in found) for found in pages)
    assert {
        block.text.splitlines()[0]: block.not_tried
        for found in pages
        for block in found
        if block.not_tried
    } == NOT_TRIED


@pytest.mark.soak
def test_a_script_of_ones_own(tmp_path: Path) -> None:
    follow(PAGES / "your-own-script.md", tmp_path)


@pytest.mark.programs
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["first-job", "first-job-on-aws"])
def test_a_first_job(page: str, tmp_path: Path) -> None:
    """The one on AWS with the variable that makes every `up` one on the local cloud."""
    aws = {"SPOTELASTIC_LOCAL": "1"} if page == "first-job-on-aws" else {}
    try:
        follow(PAGES / f"{page}.md", tmp_path, **aws)
    finally:
        subprocess.run(
            ["spotelastic", "down", "train", "--local"],
            env=environment_of(tmp_path),
            cwd=tmp_path,
            capture_output=True,
            check=False,
            timeout=120,
        )
