"""What `make test-pure` lets its tests do."""

import shlex

import pytest
from support.places import TESTS
from support.repo import pure


@pytest.mark.parametrize(
    ("event", "what", "told"),
    [
        ("import", "torch", "imports torch"),
        ("import", "torch.nn.functional", "imports torch"),
        ("subprocess.Popen", "/bin/true", "starts a process"),
        ("os.fork", "", "starts a process"),
    ],
)
def test_neither_torch_nor_a_process_is_let_in(event: str, what: str, told: str) -> None:
    with pytest.raises(pure.ImpureError, match=told):
        pure.refuse(event, (what,))


def test_other_modules_and_files_are() -> None:
    for event, what in (("import", "torchless"), ("import", "msgspec"), ("open", "a.txt")):
        pure.refuse(event, (what,))


def test_each_folder_that_it_takes_has_tests() -> None:
    makefile = (TESTS.parent / "Makefile").read_text().replace("\\\n", " ")
    (line,) = (each for each in makefile.splitlines() if each.startswith("PURE :="))
    folders = shlex.split(line.removeprefix("PURE :="))
    assert len(folders) > 5
    assert all([*(TESTS.parent / folder).glob("test_*.py")] for folder in folders)
