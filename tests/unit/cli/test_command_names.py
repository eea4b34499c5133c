"""The commands of `spotelastic --help`, the pages of `up --help`, and names of commands that go."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from support.clusters.published_cluster import STATUS

from spotelastic.aws.security import sessions
from spotelastic.cli.app import app
from spotelastic.cli.main import main
from spotelastic.cli.options.help_pages import FIRST, SUBJECTS
from spotelastic.client.cluster import Cluster
from spotelastic.client.interruptions import drill_plan, drill_recovery
from spotelastic.client.targets import find

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
    assert hidden == FORMER | {"boot"}


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


PLAN = '[{"after": "1s", "kind": "loss"}]'
SAME = {
    "drill quokka --plan plan.json": "interrupt --plan plan.json --name quokka",
    "drill --plan plan.json --seed 3 --no-wait": "interrupt --plan plan.json --seed 3 --no-wait",
    "drill quokka --plan plan.json --json": "interrupt --plan plan.json --name quokka --json",
    "drill --plan none.json": "interrupt --plan none.json",
    "forward i-1 6006": "shell i-1 --forward 6006",
    "forward i-1 6006 --to 16006 --name quokka": (
        "shell i-1 --forward 6006 --to 16006 --name quokka"
    ),
    "forward i-none 6006": "shell i-none --forward 6006",
}


@pytest.mark.parametrize("former", SAME)
def test_a_former_name_does_the_same_and_says_once_what_takes_its_place(
    former: str, typed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(PLAN)
    done: list[Any] = []
    target = SimpleNamespace(aws="aws", check_sessions=lambda node: done.append(node.id))
    target.account = lambda what: target
    record = SimpleNamespace(name="quokka", spec=SimpleNamespace(cluster="quokka"))

    def found(name: str | None, *more: object, **kinds: object) -> tuple[Any, Any]:
        done.append((name or "quokka", more[:2]))
        return target, record

    def drilled(*given: Any) -> tuple[()]:
        done.append(given[2:4])
        given[4]("is taken away")
        return ()

    def becomes(program: str, words: list[str]) -> None:
        done.append(words)
        raise SystemExit(7)

    monkeypatch.setattr(find, "found", found)
    monkeypatch.setattr(drill_plan, "run", drilled)
    monkeypatch.setattr(drill_recovery, "wait", lambda *given: done.append("waited"))
    monkeypatch.setattr(Cluster, "status", lambda _: STATUS)
    monkeypatch.setattr(sessions, "forward", lambda *given: ["plugin", *map(str, given)])
    monkeypatch.setattr(os, "execv", becomes)
    node = STATUS.nodes[0].id
    code, out, err = typed(former.replace("i-1", node))
    before, note = done.copy(), err.partition("\n")[0]
    done.clear()
    assert typed(SAME[former].replace("i-1", node)) == (code, out, err.partition("\n")[2])
    assert done == before
    name = former.partition(" ")[0]
    assert note.startswith(f"note: `spotelastic {name}` is now `spotelastic ")
    assert SAME[former].partition(" ")[0] in note
    assert (code == 0) == ("none" not in former and name == "drill")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("interrupt", "name a node, or give --plan FILE"),
        ("interrupt i-1 --plan plan.json", "leave NODE, --in and --kind out"),
        ("interrupt --plan plan.json --in 5", "leave NODE, --in and --kind out"),
        ("shell i-1 --to 80", "add --forward"),
        ("files quokka out/best.pt", "add --fetch"),
        ("files quokka --to there", "add --fetch"),
    ],
)
def test_flags_that_would_be_passed_over_are_refused(line: str, why: str, typed: Any) -> None:
    code, out, err = typed(line)
    assert (code, out) == (2, "")
    assert why in err and err.count("\n") == 1


def test_commands_that_no_release_had_are_gone(typed: Any) -> None:
    for name in REMOVED:
        assert f"no such command: {name}" in typed(name)[2]
