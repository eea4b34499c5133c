"""Each word of the glossary stands for one idea, and each idea has one word."""

import re
from collections import Counter
from pathlib import Path

GLOSSARY = Path(__file__).parents[3] / "docs/glossary.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) ?\|$", re.MULTILINE)
COMMA = re.compile(r",\s*(?![^(]*\))")
"""A comma that stands in no parentheses."""


def rows() -> list[tuple[list[str], list[str]]]:
    """The terms of each row, and the words that are not used for them."""
    found = [(COMMA.split(terms), COMMA.split(others)) for terms, _, others in ROW.findall(text())]
    return [
        ([term.strip() for term in terms], [word.strip() for word in others if word.strip()])
        for terms, others in found
        if terms[0].strip() not in ("term", "---")
    ]


def text() -> str:
    return GLOSSARY.read_text()


def test_every_row_is_read() -> None:
    lines = [line for line in text().splitlines() if line.startswith("| ")]
    heads = [line for line in lines if line.startswith("| term ")]
    assert len(rows()) == len(lines) - len(heads) > 100


def test_no_term_is_defined_twice() -> None:
    counts = Counter(term for terms, _ in rows() for term in terms)
    assert [term for term, count in counts.items() if count > 1] == []


def test_a_word_that_is_not_used_for_an_idea_names_its_own_if_it_has_one() -> None:
    """Otherwise two terms would stand for one idea, or one row contradicts another."""
    known = {term for terms, _ in rows() for term in terms}
    assert [(terms, word) for terms, others in rows() for word in others if word in known] == []


def test_two_terms_do_not_rule_each_other_out() -> None:
    """Each as a word that is not used for the other, without a difference that is told."""
    ruled = {(term, word) for terms, others in rows() for term in terms for word in others}
    assert [pair for pair in ruled if pair[::-1] in ruled] == []
