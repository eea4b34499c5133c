"""What people type into the search leads to the page that answers; users are shown no decisions.

The site's search scores a page by its best section: words of tags weigh more than those of titles,
and these more than text. This scores in the same way (BM25), from the pages' sources.
"""

import math
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import search_words

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
BOOSTS = {"title": 1e3, "tags": 1e6, "text": 1.0}
"""How much a word in each part of a section weighs, as in Material for MkDocs."""
ALL = 2.0
"""How much more a section weighs that has all words."""
SAID = re.search(r"new Set\(\((.+?)\)\.split", (DOCS / "assets/search.js").read_text(), re.DOTALL)
assert SAID is not None
STOP = frozenset(re.findall(r"\w+", SAID[1]))
"""Words that the site leaves out of a question: the search would take them for beginnings."""
ASKED = [
    ("NCCL timeout", "how-to/hangs.md"),
    ("training is stuck", "how-to/hangs.md"),
    ("out of memory", "how-to/why-it-failed.md"),
    ("CUDA error", "how-to/why-it-failed.md"),
    ("my job crashed", "how-to/why-it-failed.md"),
    ("gradient accumulation", "how-to/data.md"),
    ("change batch size", "how-to/data.md"),
    ("shuffle dataset", "how-to/data.md"),
    ("kill a job", "how-to/take-down.md"),
    ("delete cluster", "how-to/take-down.md"),
    ("stop paying", "how-to/take-down.md"),
    ("metrics", "how-to/metrics.md"),
    ("grafana", "how-to/metrics.md"),
    ("how much does it cost", "how-to/limit-cost.md"),
    ("budget", "how-to/limit-cost.md"),
    ("resume", "how-to/jobs-and-storage.md"),
    ("start from scratch", "how-to/jobs-and-storage.md"),
    ("spot price", "how-to/choose-capacity.md"),
    ("instance type", "how-to/choose-capacity.md"),
    ("no capacity", "how-to/choose-capacity.md"),
    ("wandb", "how-to/experiment-trackers.md"),
    ("S3 permission", "reference/permissions.md"),
    ("IAM policy", "reference/permissions.md"),
    ("private subnet", "how-to/own-network.md"),
    ("continue tomorrow", "how-to/change-a-job.md"),
    ("add more nodes", "how-to/change-a-job.md"),
    ("vCPU quota", "how-to/prepare-an-account.md"),
    ("ssh into a node", "how-to/reach-a-node.md"),
    ("where are my logs", "how-to/output.md"),
    ("ModuleNotFoundError", "how-to/code-and-packages.md"),
    ("requirements.txt", "how-to/code-and-packages.md"),
    ("API key", "how-to/secrets.md"),
    ("docker image", "how-to/own-image.md"),
    ("load pretrained weights", "how-to/import-export.md"),
    ("FSDP", "how-to/fsdp2.md"),
    ("torch.compile", "how-to/in-place.md"),
    ("huggingface trainer", "how-to/hugging-face-and-lightning.md"),
    ("slow node", "how-to/slow-nodes.md"),
    ("straggler", "how-to/slow-nodes.md"),
    ("macbook or mac", "how-to/laptops.md"),
    ("slack", "how-to/notifications.md"),
    ("another region", "how-to/move-a-job.md"),
    ("exit code", "reference/exit-codes.md"),
    ("learning rate scheduler", "how-to/what-is-saved.md"),
    ("simulate interruption", "how-to/interrupt-and-drill.md"),
    ("quickstart", "tutorials/first-job.md"),
    ("google cloud storage", "how-to/object-stores.md"),
    ("shm-size", "how-to/shared-memory.md"),
    ("goodput", "how-to/read-the-report.md"),
    ("download results", "how-to/keep-files.md"),
    ("why did my job fail", "how-to/why-it-failed.md"),
    ("how do I resume training", "how-to/jobs-and-storage.md"),
    ("install", "tutorials/first-job.md"),
    ("mixed precision", "how-to/what-is-saved.md"),
    ("delete everything", "how-to/take-down.md"),
]


def words(text: str) -> list[str]:
    """Words as the search compares them, roughly: without case and endings."""
    found = re.findall(r"[a-z0-9][\w./+]*", text.lower().replace("-", " "))
    stripped = (re.sub(r"(?<=\w{3})(ies|es|s|ing|ed|e)$", "", word.rstrip(".")) for word in found)
    return [word for word in stripped if word not in STOP]


@cache
def sections() -> list[tuple[str, dict[str, Counter[str]]]]:
    """The sections of all pages that are searched, with the words of their parts."""
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        page = path.relative_to(DOCS).as_posix()
        if page.startswith("decisions/"):
            continue
        tags = " ".join(search_words.WORDS.get(page, ()))
        for part in re.split(r"^#{1,4} ", path.read_text(), flags=re.MULTILINE):
            title, _, text = part.partition("\n")
            texts = {"title": title, "tags": tags, "text": text}
            found.append((page, {name: Counter(words(each)) for name, each in texts.items()}))
    return found


@cache
def usual(name: str) -> tuple[float, Counter[str]]:
    """How many words a part has on the average, and in how many sections each word stands."""
    parts = [each[name] for _, each in sections()]
    return sum(part.total() for part in parts) / len(parts), Counter(w for p in parts for w in p)


def score(query: str, parts: dict[str, Counter[str]]) -> float:
    asked, total, seen = words(query), 0.0, set()
    for name, counts in parts.items():
        if seen_here := {word for word in asked if word in counts}:
            seen |= seen_here
            average, having = usual(name)
            length = 0.25 + 0.75 * counts.total() / average
            for word in seen_here:
                rare = math.log(1 + (len(sections()) - having[word] + 0.5) / (having[word] + 0.5))
                total += BOOSTS[name] * rare * counts[word] * 2.2 / (counts[word] + 1.2 * length)
    return total * (ALL if seen.issuperset(asked) else 1.0)


@pytest.mark.parametrize(("query", "page"), ASKED, ids=[query for query, _ in ASKED])
def test_a_question_leads_to_the_page_that_answers(query: str, page: str) -> None:
    ranked = sorted(sections(), key=lambda each: -score(query, each[1]))
    first = [*dict.fromkeys(each[0] for each in ranked)][:3]
    assert first[0] == page, first


def test_words_stand_with_pages_that_there_are_and_with_one_each() -> None:
    assert [page for page in search_words.WORDS if not (DOCS / page).is_file()] == []
    given = Counter(word for words in search_words.WORDS.values() for word in words)
    assert [word for word, count in given.items() if count > 1] == []


def test_groups_of_guides_are_small_and_hold_no_decision() -> None:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    groups = re.findall(r"^      - [^:\n]+:\n((?:          - .+\n)+)", text, re.MULTILINE)
    assert len(groups) > 5 and all(group.count("\n") <= 9 for group in groups)
    assert "decisions/" not in text
    listed = re.findall(r"how-to/[\w-]+\.md", text)
    assert sorted(listed) == sorted(
        f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md")
    )
