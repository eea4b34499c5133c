"""The folder tree stays readable: no folder is crowded, and none only hides one module."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "spotelastic", ROOT / "checkpoints/spotelastic_checkpoints")
MOST_MODULES = 20
MOST_LINES = 600


def test_a_folder_of_the_product_holds_two_to_twenty_modules() -> None:
    modules: Counter[Path] = Counter()
    for file in (file for package in PACKAGES for file in package.rglob("*.py")):
        if file.name != "__init__.py":
            modules[file.parent.relative_to(ROOT)] += 1
    assert len(modules) > 40
    crowded = {str(folder): count for folder, count in modules.items() if count > MOST_MODULES}
    assert not crowded, "split these folders by subject"
    lonely = [
        str(folder)
        for folder, count in modules.items()
        if count == 1 and not any(other.parent == folder for other in modules)
    ]
    assert not lonely, "a folder with one module hides it"


def test_a_file_has_at_most_600_lines() -> None:
    folders = (*PACKAGES, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
    lines = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for folder in folders
        for file in folder.rglob("*.py")
    }
    assert len(lines) > 800
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}


def test_the_name_of_a_file_says_what_it_is_about() -> None:
    """No more than two files of the product share one: a traceback shows little else."""
    stems = Counter(file.stem for package in PACKAGES for file in package.rglob("*.py"))
    often = {stem for stem, count in stems.items() if count > 2}
    assert often <= {"__init__", "__main__"}
