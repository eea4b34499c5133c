"""The commands and scripts of how-to guides do what the pages say."""

from pathlib import Path

import pytest
from support.processes.tutorials import PAGES, follow

GUIDES = PAGES.parent / "how-to"


@pytest.mark.programs
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [
        "fsdp2",
        "parameter-server",
        "from-dcp",
        "import-export",
        "launch-from-python",
        "clusters-from-python",
    ],
)
def test_a_guide(page: str, tmp_path: Path) -> None:
    follow(GUIDES / f"{page}.md", tmp_path)


@pytest.mark.soak
def test_a_replayed_trace_gives_the_table_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").symlink_to(PAGES.parents[1] / "benchmarks")
    follow(GUIDES / "replay-a-trace.md", tmp_path)
