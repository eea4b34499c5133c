"""What the documents name is there, and what they list is complete."""

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import ModuleType

from spotelastic_checkpoints import provenance
from spotelastic_checkpoints.commit import tenancy, verification
from spotelastic_checkpoints.commit.commit_protocol import PROBE
from spotelastic_checkpoints.format import metadata

import spotelastic
from spotelastic.aws.artifacts import boot_artifacts
from spotelastic.cloud import bucket
from spotelastic.controller.etcd import generations, snapshots
from spotelastic.launcher.flags import GROUPS
from spotelastic.model.interruption_kind import InterruptionKind

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs/reference"
NAMED = re.compile(
    r"(?<![\w/.:~<-])(?:spotelastic|checkpoints|tests|docs|infra|examples|benchmarks|tools)"
    r"/[\w./-]*\w\.(?:py|md|toml|sh|service|ya?ml|json|csv)\b"
)
"""Paths of files as documents write them, from the root of the repository."""
NOT_OF_NOW = {"CHANGELOG.md", "test_soak.py", "test_weight.py"}
"""Tell of files as they were called then, or of made-up ones."""
SHORT = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py)`")
"""Paths of code within a package."""
MADE_BY_READERS = {"train.py", "notebook.py", "queue.py", "platform.py"}
INTERNAL = {
    *("SPOTELASTIC_CLOUD", "SPOTELASTIC_CONTAINED", "SPOTELASTIC_CONTROL"),
    *("SPOTELASTIC_DAEMON", "SPOTELASTIC_DIE_AT", "SPOTELASTIC_IN_PLACE"),
    *("SPOTELASTIC_REHEARSAL", "SPOTELASTIC_REHEARSAL_NODE", "SPOTELASTIC_REHEARSAL_SEED"),
    *("SPOTELASTIC_LOCAL_PROGRAM", "SPOTELASTIC_SAVE_AT_REST"),
    *("SPOTELASTIC_CLUSTER", "SPOTELASTIC_GRACE", "SPOTELASTIC_NAMESPACE", "SPOTELASTIC_POD"),
    "SPOTELASTIC_SECRETS",
    *(
        "SPOTELASTIC_INSTANCE",
        "SPOTELASTIC_KERNEL_LOG",
        "SPOTELASTIC_MEASURE_EVERY",
        "SPOTELASTIC_NCCL_ERRORS",
        "SPOTELASTIC_PHASES",
        "SPOTELASTIC_PROTECTED",
        "SPOTELASTIC_PROTOCOL",
        "SPOTELASTIC_RESUME",
        "SPOTELASTIC_RUN",
        "SPOTELASTIC_SHM",
    ),
    *("SPOTELASTIC_STATE", "SPOTELASTIC_TOKEN", "SPOTELASTIC_VOLUMES"),
    *("SPOTELASTIC_ALIVE", "SPOTELASTIC_OPERATOR_IMAGE"),
}
"""Variables that processes of spotelastic pass to each other."""


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def code() -> list[Path]:
    return [*tracked("spotelastic/*.py"), *tracked("checkpoints/*.py")]


def test_no_document_or_message_names_a_file_that_is_not_there() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*tracked("*.md"), *tracked("*.py"), *tracked("*.toml")]
        if path.name not in NOT_OF_NOW
        for name in NAMED.findall(path.read_text())
        if not (ROOT / name).exists()
    ]
    assert missing == []


def test_each_test_that_a_document_names_is_there() -> None:
    """By which a line of a table says that it was checked."""
    named = [
        (path, *name)
        for path in tracked("docs/*.md")
        for name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text())
    ]
    missing = [each for each in named if f"def {each[2]}(" not in (ROOT / each[1]).read_text()]
    assert len(named) > 20 and missing == []


def test_every_decision_has_a_number_of_its_own() -> None:
    files = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    told = [int(file.read_text().removeprefix("# ").partition(".")[0]) for file in files]
    assert (
        told == [int(file.name.partition("-")[0]) for file in files] == [*range(1, len(files) + 1)]
    )


def test_code_that_a_document_names_in_short_is_there() -> None:
    known = [str(path.relative_to(ROOT)) for path in tracked("*.py")]
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked("*.md")
        if path.name not in NOT_OF_NOW
        for name in SHORT.findall(path.read_text())
        if name not in MADE_BY_READERS
        and not any(f"/{each}".endswith(f"/{name}") for each in known)
    ]
    assert missing == []


def test_every_variable_that_is_read_is_listed_or_internal() -> None:
    listed = set(re.findall(r"`(SPOTELASTIC_\w+)`", (REFERENCE / "configuration.md").read_text()))
    flags = {f"SPOTELASTIC_{each.dest.upper()}" for group in GROUPS.values() for each in group}
    read = {
        node.value
        for path in code()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"SPOTELASTIC_[A-Z_]*[A-Z]", node.value)
    }
    assert read - listed - INTERNAL - flags == set()
    assert listed - read - flags == set(), "listed, but nothing reads it"
    assert listed & INTERNAL == set()


def test_every_name_of_the_package_has_its_reference() -> None:
    api, client = ((REFERENCE / f"python-{page}.md").read_text() for page in ("api", "client"))
    listed = set(re.findall(r"^::: ([\w.]+)$", api + client, re.MULTILINE))
    named = {name.removeprefix("spotelastic.") for name in listed}
    assert {name for name in named if "." not in name} | {"client"} == {*spotelastic.__all__}
    for module in (spotelastic.dcp, spotelastic.parameter_server):
        assert {f"{module.__name__}.{name}" for name in module.__all__} <= listed
    table = api.partition("##")[0]
    assert {*re.findall(r"`se\.(\w+)`", table)} == public_names(spotelastic)
    of_client = set(re.findall(r"^::: spotelastic\.client\.(\w+)$", client, re.MULTILINE))
    of_client |= set(re.findall(r"^\| `client\.(\w+)`", client, re.MULTILINE))
    elsewhere = {"JobConfig", "up", "SpotelasticError"}
    assert of_client | elsewhere == public_names(spotelastic.client)


def public_names(package: ModuleType) -> set[str]:
    """Those that a package exports to type checkers, and imports on first use."""
    return {
        str(name.asname)
        for node in ast.walk(ast.parse(Path(str(package.__file__)).read_text()))
        if isinstance(node, ast.If)
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
    }


def kinds(path: Path) -> Iterator[str]:
    """Of the events that a module makes."""
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        named = call.func.id
        if named == "_activity" and path.name == "eventbridge.py":
            yield ast.literal_eval(call.args[0])
        if named != "Event" or len(call.args) < 2:
            continue
        for node in ast.walk(call.args[1]):
            if isinstance(node, ast.Constant):
                yield str(node.value)
            elif isinstance(node, ast.Name | ast.Attribute):
                *_, name = names = ast.unparse(node).split(".")
                if name.isupper():
                    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                    found = reduce(getattr, names, importlib.import_module(module))
                    yield from found if isinstance(found, tuple) else (str(found),)


def test_every_kind_of_event_is_listed() -> None:
    page = (REFERENCE / "events.md").read_text()
    listed = set(re.findall(r"^\| `([\w-]+)` \| (?!when|one|further|the node that)", page, re.M))
    listed -= {"at", "message"}
    made = {kind for path in code() for kind in kinds(path)}
    made |= {kind.traits.event for kind in InterruptionKind}
    assert made == listed


def test_every_kind_of_interruption_is_listed() -> None:
    page = (REFERENCE / "events.md").read_text()
    assert re.findall(r"^- `(\w+)`", page, re.M) == [kind.value for kind in InterruptionKind]


def test_every_object_of_a_cluster_is_listed() -> None:
    page = (REFERENCE / "bucket.md").read_text()
    modules = (bucket, generations)
    names = [text for each in modules for name, text in vars(each).items() if name.isupper()]
    names = [text for text in names if isinstance(text, str)]
    names += [snapshots.PREFIX, boot_artifacts.CURRENT]
    names += [PROBE, tenancy.KEY, provenance.NAME, verification.NAME, metadata.NAME]
    assert [name for name in names if not re.search(rf"[`/]{re.escape(name)}`", page)] == []
