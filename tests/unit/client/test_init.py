"""The script that `init` finds in a folder, and the file that it writes."""

import re
import tomllib
from pathlib import Path

import pytest

from spotelastic.client.config.config_file import FILE, defaults
from spotelastic.client.confirmation import agreed
from spotelastic.client.settings_file import find_script, settings_text, write_settings
from spotelastic.errors import NotConfirmed, UsageError

TEXT = settings_text("train.py", 2, 8)


def test_the_file_is_read_as_it_was_asked_for_and_so_are_its_examples(tmp_path: Path) -> None:
    assert tomllib.loads(TEXT) == {"script": "train.py", "min": 2, "max": 8}
    assert tomllib.loads(settings_text("a.py", 1, 1, ("g5.xlarge", "g6.xlarge"))) == {
        "script": "a.py",
        "min": 1,
        "max": 1,
        "instance-types": ["g5.xlarge", "g6.xlarge"],
    }
    (tmp_path / FILE).write_text(re.sub(r"(?m)^# ([a-z-]+ = )", r"\1", TEXT))
    assert {"args", "secret", "read", "linger"} <= defaults(tmp_path, {}).keys()
    assert all(len(line) <= 100 for line in TEXT.splitlines())


def test_the_script_is_the_usual_one_or_the_only_one_that_trains(tmp_path: Path) -> None:
    assert find_script(tmp_path, "train.py") == Path("train.py")
    (tmp_path / "model.py").write_text("class Net: ...")
    (tmp_path / "latin.py").write_bytes(b"# \xe9")
    (tmp_path / "fit.py").write_text("loss.backward()")
    assert find_script(tmp_path, "train.py") == Path("fit.py")
    (tmp_path / "other.py").write_text("checkpoint = se.Checkpointer({})")
    with pytest.raises(UsageError, match=r"name one of fit.py, other.py"):
        find_script(tmp_path, "train.py")
    (tmp_path / "train.py").touch()
    assert find_script(tmp_path, "train.py") == Path("train.py")


def test_a_file_that_is_there_is_replaced_only_if_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("mine")
    with pytest.raises(NotConfirmed, match="stays as it was"):
        write_settings(tmp_path, TEXT, lambda _: False)
    assert (tmp_path / FILE).read_text() == "mine"
    write_settings(tmp_path, TEXT, agreed)
    assert defaults(tmp_path, {}) == {"script": Path("train.py"), "min": 2, "max": 8}
