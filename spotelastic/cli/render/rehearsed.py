"""Renders what a rehearsal has found."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from spotelastic.cli.render.tables import table_of
from spotelastic.client.rehearsal.answer import RehearsalAnswer, Row
from spotelastic.model.counting import counted, size

_WORDS = {
    "equal": "equal, bit for bit",
    "noise": "equal within its own noise",
    "rounding": "equal up to rounding",
    "restored": "continues from the right state *",
    "failed": "FAILED",
}
_FILES = 5


def rehearsed(found: RehearsalAnswer) -> RenderableType:
    """Return the table of all acts, and what was found besides."""
    table = table_of("what was tried", "result")
    table.columns[1].no_wrap = False
    for row in found.rows:
        style = "red" if row.state in ("different", "failed") else ""
        table.add_row(row.act, Text(_word(row), style=style))
        for line in _below(row):
            table.add_row("", Text(line))
    return Group(table, Text(), *(Text(line) for line in _besides(found)))


def _word(row: Row) -> str:
    if row.state == "different":
        return f"DIFFERENT since step {row.since}" if row.since else "DIFFERENT"
    if row.state.startswith("not "):
        return f"{row.state}: {'; '.join(row.what)}"
    return _WORDS[row.state]


def _below(row: Row) -> Iterator[str]:
    if not row.state.startswith("not "):
        yield from (f"  {line}" for line in row.what)
    if row.cause:
        yield f"  probably: {row.cause}"
    if row.advice:
        yield f"  do: {row.advice}"


def _besides(found: RehearsalAnswer) -> Iterator[str]:
    if any(row.state == "restored" for row in found.rows):
        yield (
            "* what it trains then depends on the number of ranks, without interruptions too, and "
            "cannot be compared"
        )
    if found.variables:
        yield "variables that the loop keeps, and that nothing saves:"
        yield from (f"  {each}" for each in found.variables)
    if found.files:
        more = len(found.files) - _FILES
        told = ", ".join(found.files[:_FILES]) + (f" and {more} more" if more > 0 else "")
        yield f"files that exist only on the node that wrote them: {told}"
    if found.steps:
        gpu = f", {size(found.gpu)} of its GPU" if found.gpu else ""
        yield (
            f"{found.script}: {counted(found.steps, 'step')} on {counted(found.ranks, 'rank')}, "
            f"{found.first_step:.1f} s to the first step, {size(found.memory)} of memory a rank"
            f"{gpu}"
        )
    if not found.is_equal:
        yield "interruptions change what this script computes"
    else:
        what, but = (" that is trained", ", only these variables") if found.variables else ("", "")
        reach = f" in the first {counted(found.steps, 'step')}" if found.steps else ""
        untried = [f"{row.act} ({row.what[0]})" for row in found.rows if row.state == "not tried"]
        rest = f"; not tried: {'; '.join(untried)}" if untried else ""
        yield f"interruptions change nothing{what}{reach}{but}{rest}"
