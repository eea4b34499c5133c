"""One script means the same to `python`, `torchrun` and `spotelastic run`.

What differs is a row of the table "What a script can observe" in docs/how-to/from-torchrun.md, and
has to differ.
"""

import re
from pathlib import Path

import conformance
import pytest
from conformance_scripts import CASES, ROWS, SHOWN, SHOWN_OTHERWISE, STORAGE

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "from-torchrun.md"


@pytest.mark.programs
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", CASES)
def test_a_script_means_the_same_to_all_three(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    here = tmp_path / "here" / "cwd"  # in all of them, as the script may tell where it is

    def folder_of(launcher: str) -> Path:
        if here.parent.exists():
            here.parent.rename(tmp_path / launcher)
        here.parent.mkdir()
        return here

    others = [conformance.torchrun(case, folder_of(""))]
    if case.alone:
        others.append(conformance.python(case, folder_of("torchrun")))
    mine, shown = conformance.ours(case, folder_of("before"))
    if name in ROWS:
        assert mine != others[0], f"the row {ROWS[name]!r} is not true any more"
    else:
        for other in others:
            assert mine == other
    assert (shown == mine.output) is (name not in SHOWN_OTHERWISE), SHOWN
    assert (here / "runs").is_dir(), STORAGE


def test_each_difference_is_documented_and_each_that_is_documented_is_tried() -> None:
    section = (
        DOCUMENT.read_text().partition("## What a script can observe\n")[2].partition("\n#")[0]
    )
    rows = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)
    assert sorted(rows) == sorted({*ROWS.values(), SHOWN, STORAGE})
    assert {*ROWS, *SHOWN_OTHERWISE} <= CASES.keys()
