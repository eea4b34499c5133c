"""Pictures are as their script draws them, their words have room, and a page shows each."""

import re
from pathlib import Path

import pictures
import pytest

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs/images"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_file_is_what_its_script_draws(name: str) -> None:
    drawn = pictures.PICTURES[name]()
    assert (IMAGES / name).read_text() == drawn.svg(), "run python tools/docs/pictures.py"
    assert [text for text, takes, has in drawn.texts if takes > has] == []


def test_pages_show_each_picture_and_say_what_is_on_it() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    shown = [
        each for page in pages for each in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", page.read_text())
    ]
    assert {Path(path).name for _, path in shown} == {path.name for path in IMAGES.iterdir()}
    assert all(len(text) > 15 for text, _ in shown), "for whoever does not see it"
