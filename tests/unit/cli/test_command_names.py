"""The commands of `spotelastic --help`, and the pages of `up --help`."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from spotelastic.cli.app import app
from spotelastic.cli.main import kubectl, main
from spotelastic.cli.options.help_pages import FIRST, SUBJECTS

WIDTH = 80
FLAG = "--[a-z][a-z-]*[a-z]"
FORMER = {"cost", "drill", "forward"}
REMOVED = {"new-script", "notify", "fetch"}
"""Never in a release."""


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line; returns its exit code and what it has printed."""

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["spotelastic", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def commands(group: Any = None, above: str = "") -> Mapping[str, Any]:
    """Those that do something, by what is typed after `spotelastic`."""
    found: dict[str, Any] = {}
    root: Any = group or typer.main.get_command(app)
    for name, each in root.commands.items():
        below = hasattr(each, "commands")
        found |= commands(each, f"{above}{name} ") if below else {f"{above}{name}": each}
    return found


def shown(page: str) -> set[str]:
    """The flags that a page of help lists: at the beginning of a line, switched off beside it."""
    found = re.findall(rf"^│ +({FLAG})(?: +-\w)?(?: +({FLAG}))?", page, re.M)
    return {flag for row in found for flag in row if flag}


def flags(found: Iterable[Any]) -> set[str]:
    names = (name for each in found for name in (*each.opts, *each.secondary_opts))
    return {name for name in names if name.startswith("--")}


def test_the_first_help_lists_few_commands_by_what_people_do(typed: Any) -> None:
    page = typed("--help")[1]
    panels = re.findall(r"^╭─ (.*?) ─+╮\n(.*?)^╰", page, re.M | re.S)
    listed = [name for _, text in panels[1:] for name in re.findall(r"^│ (\w+) ", text, re.M)]
    assert len(panels) == 7
    assert len(listed) == len(set(listed)) <= 24
    assert not {*listed} & (FORMER | REMOVED)
    hidden = {name for name, each in commands().items() if each.hidden}
    assert hidden == {"boot"}


def test_former_names_of_commands_say_what_they_are_now(typed: Any, tmp_path: Path) -> None:
    for line, now in (
        ("cost none --region nowhere", "report --cost"),
        ("forward i-1 8080 --cluster none --region nowhere", "shell NODE --forward PORT"),
    ):
        name, *others = line.split()
        code, _, told = typed(line)
        first = f"note: `spotelastic {name}` is now `spotelastic {now}`\n"
        assert told.startswith(first), told
        same = {"cost": ["report", "--cost", *others]}.get(
            name, ["shell", "i-1", "--forward", *others[1:]]
        )
        assert (code, told.removeprefix(first)) == typed(" ".join(same))[::2]
    assert typed("drill quokka --plan plan.json")[0] == 2
    assert "up --local --drill" in typed("drill")[2]


def test_the_help_of_every_command_fits(typed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    root: Any = typer.main.get_command(app)
    pages = {"run": typed("run --help")[1]}  # which is not of this application
    for name in commands(root).keys() - {"boot", "run"}:
        root([*name.split(), "--help"], prog_name="spotelastic", standalone_mode=False)
        pages[name] = capsys.readouterr().out
    for name, page in pages.items():
        assert "Usage: spotelastic" in page, name
        assert max(map(len, page.splitlines())) <= WIDTH, name
        cut = re.findall(rf"^│ +(?:.* )?{FLAG}-?….*", page.partition("More options")[0], re.M)
        assert cut == [], name


def test_the_first_page_of_up_has_what_most_jobs_need_and_names_the_others(typed: Any) -> None:
    code, page, _ = typed("up --help")
    up = commands()["up"]
    assert code == 0
    assert {each.name for each in up.params} >= FIRST
    first, last = page.split("More options: spotelastic up --help SUBJECT")
    rows = re.findall(rf"^│ +{FLAG}", first, re.M)
    assert len(rows) <= 35
    assert shown(first) >= {
        "--min",
        "--max",
        "--local",
        "--plan",
        "--max-cost",
        "--notify",
        "--kube",
    }
    assert re.findall(r"^│ (\w+)", last, re.M) == [*SUBJECTS, "all"]
    for line in ("up -h", "up --help train.py", "up --help --min 2"):
        assert typed(line)[1] == page


def test_every_option_of_up_is_on_the_page_of_its_subject(
    typed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # where no name goes on in the next line
    options = [each for each in commands()["up"].params if each.param_type_name == "option"]
    found = set()
    for subject, panel in SUBJECTS.items():
        page = typed(f"up --help {subject}")[1]
        its = flags(each for each in options if each.rich_help_panel == panel)
        assert its and shown(page) == its | {"--help"}
        found |= its
    assert found == flags(options)
    assert shown(typed("up --help all")[1]) == found | {"--help"}


def test_an_option_of_another_page_is_taken_as_before(typed: Any, tmp_path: Path) -> None:
    assert typed("up --lease 1 train.py")[0] == 2
    assert "--lease" in typed("up --lease 1 train.py")[2]
    assert "did you mean --subnets" in typed("up --subnet a train.py")[2]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("shell i-1 --to 80", "add --forward"),
        ("files quokka out/best.pt", "add --fetch"),
        ("files quokka --to there", "add --fetch"),
    ],
)
def test_flags_that_would_be_passed_over_are_refused(line: str, why: str, typed: Any) -> None:
    code, out, err = typed(line)
    assert (code, out) == (2, "")
    assert why in err and err.count("\n") == 1


def test_names_of_no_release_are_gone(typed: Any) -> None:
    for name in REMOVED:
        assert f"no such command: {name}" in typed(name)[2]


def test_as_a_plugin_of_kubectl_all_commands_look_on_kubernetes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("SPOTELASTIC_KUBE", "0")
    monkeypatch.delenv("SPOTELASTIC_KUBE")  # which puts back what was there at the end
    monkeypatch.setattr("sys.argv", ["kubectl-spotelastic", "status", "gpt"])
    with pytest.raises(SystemExit):
        kubectl()
    assert "no Kubernetes cluster is configured" in capsys.readouterr().err
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"][
        "scripts"
    ]
    assert scripts["kubectl-spotelastic"] == f"{kubectl.__module__}:{kubectl.__name__}"
