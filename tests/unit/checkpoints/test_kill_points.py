"""The points at which the fault tests kill a process are all in the code, each once."""

import re
from collections import Counter
from pathlib import Path

import spotelastic_checkpoints
from support.processes.kill_points import Stage

import spotelastic

REACHED = re.compile(r'crash_points\.reached\("([a-z-]+)"\)')


def test_each_stage_is_reached_in_the_code_and_no_other() -> None:
    folders = [Path(package.__path__[0]) for package in (spotelastic, spotelastic_checkpoints)]
    texts = [file.read_text() for folder in folders for file in folder.rglob("*.py")]
    found = Counter(stage for text in texts for stage in REACHED.findall(text))
    assert found.keys() == {*Stage}
    assert sum(text.count("crash_points.reached(") for text in texts) == found.total()
