"""What is said of a rehearsal claims no more than was tried."""

from io import StringIO

from rich.console import Console

from spotelastic.cli.render.rehearsed import rehearsed
from spotelastic.client.rehearsal.answer import LostVariable, RehearsalAnswer, Row


def said(*rows: Row, steps: int = 20, variables: tuple[LostVariable, ...] = ()) -> list[str]:
    console = Console(width=200, record=True, file=StringIO())
    console.print(rehearsed(RehearsalAnswer("train.py", 2, steps, rows, variables)))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_last_line_says_up_to_which_step_and_what_was_not_tried() -> None:
    end = Row("stopped after step 100, at an epoch's end", "not tried", what=("--steps 109",))
    lines = said(Row("stopped", "equal"), end)
    assert any(line.endswith("not tried: --steps 109") for line in lines)
    assert lines[-1] == (
        "interruptions change nothing in the first 20 steps; not tried: stopped after step 100, "
        "at an epoch's end (--steps 109)"
    )


def test_where_all_was_tried_the_last_line_names_the_steps_alone() -> None:
    assert said(Row("stopped", "equal"))[-1] == "interruptions change nothing in the first 20 steps"
    lost = (LostVariable("best", "float"),)
    assert said(Row("stopped", "equal"), variables=lost)[-1] == (
        "interruptions change nothing that is trained in the first 20 steps, only these variables"
    )


def test_a_script_without_steps_is_told_of_none() -> None:
    assert said(Row("killed", "equal"), steps=0)[-1] == "interruptions change nothing"
