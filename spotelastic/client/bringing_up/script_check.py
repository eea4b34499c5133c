"""Reads a job's script, and says what it will miss on nodes.

It does so before money and time are spent on the script: packages, or a Checkpointer.

The script and the modules of its folder that it imports are parsed, never run. What cannot be told
from the text is passed over: these are hints, and none of them refuses a job.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from spotelastic.client.adapt.source import Source, argument, nodes
from spotelastic.client.bringing_up import node_packages
from spotelastic.client.bringing_up.node_packages import NodePackages, normal
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.errors import UsageError

SAVERS = frozenset({"Checkpointer", "dcp", "integrations", "parameter_server"})
"""Names of spotelastic by which a script saves."""


def findings(job: ValidatedJob) -> tuple[str, ...]:
    """Return what the script of a job will miss, one line each.

    Empty for code that is not a folder of this machine.
    """
    if not job.archive.names:
        return ()
    folder, script = Path.cwd(), job.spec.script
    code = [*_code(folder, script, job.archive.names)]
    lines = [] if job.spec.container else [*_packages(job, code, node_packages.of(job, folder))]
    if code and not any(_saves(each) for each in code):
        lines.append(
            f"{script} has no Checkpointer: nothing of it is saved, so each interruption starts it "
            f"again from its first step; `spotelastic adapt {script}` writes one"
        )
    if job.spec.settings.exact and code and not job.spec.virtual_ranks:
        lines.append(
            f"{script} gives no ElasticSampler virtual_ranks, without which --exact refuses it "
            "before its first step"
        )
    return tuple(lines)


def with_virtual_ranks(job: ValidatedJob) -> ValidatedJob:
    """Return the job with what its script's text says of virtual ranks.

    With them its nodes may be of unlike types.
    """
    if not job.archive.names:
        return job
    code = _code(Path.cwd(), job.spec.script, job.archive.names)
    return replace(job, spec=replace(job.spec, virtual_ranks=any(map(_deals_out, code))))


def _deals_out(source: Source) -> bool:
    calls = nodes(source.tree, ast.Call)
    given = (argument(call, "virtual_ranks") for call in calls)
    return any(each is not None and ast.unparse(each) != "None" for each in given)


def _code(folder: Path, script: str, names: frozenset[str]) -> Iterator[Source]:
    """Yield the script, and the shipped modules that it imports, directly or in turn."""
    left, seen = [script], set[str]()
    for name in left:  # which grows
        if name in seen or name not in names:
            continue
        seen.add(name)
        try:
            source = Source((folder / name).read_text(), name)
        except (UsageError, OSError, UnicodeDecodeError):
            continue
        yield source
        for _, module in _imports(source):
            for place in (PurePosixPath(script).parent, PurePosixPath(), PurePosixPath("src")):
                path = place.joinpath(*module.split("."))
                near = (path, path.parent)
                left += [f"{each}{end}" for each in near for end in (".py", "/__init__.py")]


def _imports(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the modules that are imported whatever happens.

    Imports in an `if`, a `try` or a `with` are left out, because a script can do without these
    modules.
    """
    for each in nodes(source.tree, ast.Import, ast.ImportFrom):
        kinds = ast.If | ast.Try | ast.With
        around = [one for one in source.around(each) if isinstance(one, kinds)]
        if all("__name__" in ast.unparse(getattr(one, "test", one)) for one in around):
            level = getattr(each, "level", 0)  # of a relative import
            before = [*PurePosixPath(source.name).parts[:-level]] if level else []
            before += filter(None, [getattr(each, "module", "")])
            yield from ((each, ".".join([*before, alias.name])) for alias in each.names)


def _saves(source: Source) -> bool:
    used = {each.attr for each in nodes(source.tree, ast.Attribute)}
    ours = [name.split(".") for name in source.imported.values() if name.startswith("spotelastic")]
    return bool(ours) and not SAVERS.isdisjoint({*used, *(part for name in ours for part in name)})


def _packages(job: ValidatedJob, code: Sequence[Source], its: NodePackages) -> Iterator[str]:
    """Yield modules that neither Python, the folder, the set-up nor a package brings."""
    passed = {PurePosixPath(part).stem for name in job.archive.names for part in name.split("/")}
    passed |= {*sys.stdlib_module_names, "__main__"}
    for source in code:
        for node, name in _imports(source):
            module = name.partition(".")[0]
            if module in passed or normal(module) in normal(job.spec.setup) or its.bring(module):
                continue
            passed.add(module)
            why = f"nothing installs on the nodes: add it to {its.file or 'a requirements.txt'}"
            if its.file and not its.complete:
                why = f"{its.file} does not name: add it there, unless another package brings it"
            yield f"{source.name}, line {node.lineno}: imports {module}, which {why}"
