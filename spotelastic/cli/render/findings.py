"""Draws what `doctor` has found."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spotelastic.client.doctor.finding import Finding, Findings

COLOUR = {"ok": "green", "note": "", "warning": "yellow", "missing": "red", "no answer": "red"}
ENDS = {
    0: "Nothing is missing.",
    1: "Something did not answer: try again.",
    2: "Something is missing: see above.",
}


def findings_table(found: Findings) -> RenderableType:
    """Return a table for each part, with the advice below what it is about."""
    parts: list[RenderableType] = []
    for part, findings in groupby(found.findings, key=lambda finding: finding.part):
        parts += [Text(part, "bold"), _table(list(findings)), Text()]
    return Group(*parts, Text(ENDS[found.exit_code]))


def _table(findings: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (9, 11):
        table.add_column(min_width=width, no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        table.add_row(Text(each.state, COLOUR[each.state]), each.check, Text(each.found))
        if each.advice:
            table.add_row("", "", Text(f"-> {each.advice}"))
    return table
