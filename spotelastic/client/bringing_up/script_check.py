"""Reads a job's script, and says what it will miss on nodes.

It does so before money and time are spent on the script. What is missed may be packages, files, or
a Checkpointer.

The script and the modules of its folder that it imports are parsed, never run. What cannot be told
from the text is passed over: these are hints, and none of them refuses a job.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from spotelastic.client.adapt.ranks import of_ranks
from spotelastic.client.adapt.source import Source, argument, calls, dotted, last_name, nodes
from spotelastic.client.bringing_up import node_packages
from spotelastic.client.bringing_up.node_packages import NodePackages, normal
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.errors import UsageError

SAVERS = frozenset({"Checkpointer", "dcp", "integrations", "parameter_server"})
"""Names of spotelastic by which a script saves."""
READS = re.compile(
    r"open|load(_file|_from_disk|txt)?|genfromtxt|fromfile|memmap|imread|read_\w+|(list|scan|iter)dir"
    r"|r?glob|safe_open|File|(Image|Dataset)Folder"
)
"""Functions that read the file or folder that is their first argument, and methods of a path."""
WRITES = re.compile(
    r"(torch(vision)?|numpy|safetensors|matplotlib)\.(\w+\.)*save\w*|write_(text|bytes)"
    r"|.*\.(to_(csv|json|parquet|pickle)|save_(pretrained|to_disk)|savefig|tofile)"
)
"""Functions that write the file that is their first or second argument, and methods of a path."""
PATTERN = re.compile(r"[*?\[\]{}%]")
"""What no file name has that is meant as it is written: it is a pattern, or becomes another."""
OF_NODES = ("/dev/", "/etc/", "/opt/", "/proc/", "/sys/", "/tmp/", "/usr/", "/var/")
"""Places that a node has, too."""
LONGEST = 256
"""Characters from which on a text is no path."""
JOINS = re.compile("distributed|accelerat|lightning|fabric|deepspeed|trainer", re.IGNORECASE)
"""What a script has in it that makes one group of its workers, or leaves that to a library."""
METHODS = frozenset({"resolve", "absolute", "joinpath"})
"""Methods that make a path of another one."""
MADE_OF_PATHS = METHODS | {"Path", "join", "str", "abspath", "realpath", "dirname"}


def findings(job: ValidatedJob) -> tuple[str, ...]:
    """Return what the script of a job will miss, one line each.

    Empty for code that is not a folder of this machine.
    """
    if not job.archive.names:
        return ()
    folder, script = Path.cwd(), job.spec.script
    code = [*_code(folder, script, job.archive.names)]
    lines = [] if job.spec.container else [*_packages(job, code, node_packages.of(job, folder))]
    lines += _files(job, code, folder)
    lines += dict.fromkeys(line for each in code for line in _kept_ranks(each))
    if code and not any(_saves(each) for each in code):
        lines.append(
            f"{script} has no Checkpointer: nothing of it is saved, so each interruption starts it "
            f"again from its first step; `spotelastic adapt {script}` writes one"
        )
    makes = any(calls(each.tree, "Checkpointer") for each in code)
    if makes and job.spec.settings.max_nodes > 1 and not any(JOINS.search(e.text) for e in code):
        lines.append(
            f"{script} does not use torch.distributed: unless something that it imports does, it "
            "fails with more than one worker. Call torch.distributed.init_process_group() first, "
            "and wrap the model in DistributedDataParallel, or give --min 1 --max 1"
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


def _files(job: ValidatedJob, code: Sequence[Source], folder: Path) -> Iterator[str]:
    """Yield files and folders that are read, and that nodes do not have."""
    shipped = {part for name in map(PurePosixPath, job.archive.names) for part in name.parents}
    shipped |= {PurePosixPath(name) for name in job.archive.names}
    uses = [(source, call, path) for source in code for call, path in _paths(source)]
    read = [use for use in uses if _does(*use) == "reads"]
    yield from _left_behind(job, [use for use in uses if _does(*use) == "writes"])
    # What is written, or asked for first, the script may make by itself.
    passed = {use[2] for use in uses if use not in read}
    for source, call, path in read:
        place = folder / os.path.expanduser(path)  # noqa: PTH111 - Path's raises for no such user
        elsewhere, there = path[0] in "/~" or ".." in path, place.exists()
        if path in passed or PurePosixPath(path) in shipped or "://" in path:
            continue
        passed.add(path)
        if elsewhere and there and not (job.config.local or f"{path}/".startswith(OF_NODES)):
            why = "no node has: put it into this folder, or into a bucket (--read)"
        elif not elsewhere and there:
            why = (
                "an ignore file keeps from being shipped: add the line "
                f"!/{path} to .spotelasticignore, or put it into a bucket (--read)"
            )
        elif not elsewhere and not job.spec.setup:
            why = "is not in this folder, so no node has it"
        else:
            continue
        yield f"{source.name}, line {call.lineno}: reads {path}, which {why}"


def _left_behind(job: ValidatedJob, uses: Sequence[tuple[Source, ast.Call, str]]) -> Iterator[str]:
    """Yield files that are written beside the script, and go with their node."""
    kept = job.spec.settings.outputs
    if any(calls(source.tree, "chdir") for source, _, _ in uses):
        return
    for path, (source, call, _) in {use[2]: use for use in reversed(uses)}.items():
        place = PurePosixPath(path)
        is_kept = any(place.is_relative_to(each) for each in kept)
        if is_kept or "://" in path or str(place)[0] in "/~.":
            continue
        folder, name = place.parts[0], "" if kept else ", with --output DIR"
        todo = f"--output {folder}" if place.parts[1:] else f"write into $SPOTELASTIC_OUTPUT{name}"
        yield f"{source.name}, line {call.lineno}: writes {path}, which stays on its node: {todo}"


def _kept_ranks(source: Source) -> Iterator[str]:
    """Yield what a script makes of the ranks before its loop of steps, and reads later."""
    loops = [each for each in nodes(source.tree, ast.For) if isinstance(each.iter, ast.Call)]
    for loop in (each for each in loops if last_name(each.iter.func) in ("steps", "epochs")):
        made, scope = of_ranks(source), source.scope(loop)
        again = {name for name, *_, where in made if where.lineno >= loop.lineno}
        later = [
            each for each in nodes(scope, ast.Name, ast.Attribute) if each.lineno > loop.lineno
        ]
        for name, *_, where in made:
            if name not in again and name in map(dotted, later):
                yield (
                    f"{source.name}, line {where.lineno}: {name} is made of the ranks, and these "
                    "change while a process goes on: make it again in the loop, and after it"
                )


# -- paths that are written as such --------------------------------------------------------------


def _paths(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that are given a path that the text tells, and the path."""
    for call in nodes(source.tree, ast.Call):
        given = [*call.args, *(each.value for each in call.keywords)]
        given += [call.func.value] if isinstance(call.func, ast.Attribute) else []
        if last_name(call.func) not in MADE_OF_PATHS:
            yield from ((call, path) for each in given if (path := _path(source, each)))


def _path(source: Source, node: ast.AST, depth: int = 9) -> str:
    """Return a path, relative to the folder; "" if the text does not tell it."""
    parts: list[ast.AST] = []
    match node:
        case ast.Constant(value=str(text)):
            is_path = text.isprintable() and len(text) < LONGEST and not PATTERN.search(text)
            return text if is_path else ""
        case ast.Name(id="__file__"):
            return source.name
        case ast.Name():
            scope = source.scope(node)
            given = {each.arg for each in nodes(getattr(scope, "args", ()), ast.arg)}
            values = source.values(node.id, scope) if node.id not in given else ()
            parts = [values[0]] if len(values) == 1 and values[0] is not None else []
        case ast.BinOp(op=ast.Div()):
            parts = [node.left, node.right]
        case ast.Attribute(value=inner, attr=attr) if attr in METHODS | {"parent"}:
            parts = [inner]
        case ast.Call(func=func) if last_name(func) in MADE_OF_PATHS:
            of_path = isinstance(func, ast.Attribute) and func.attr in METHODS
            parts = [*([func] if of_path else []), *node.args]
    found = [_path(source, each, depth - 1) for each in parts if depth]
    whole = PurePosixPath(*found)
    if getattr(node, "attr", last_name(getattr(node, "func", node))) in ("parent", "dirname"):
        whole = whole.parent if whole.name else whole / ".."
    return str(whole) if found and all(found) else ""


def _does(source: Source, call: ast.Call, path: str) -> str:
    """Return "reads" of a call that reads the path, which has to be there then, or "writes"."""
    name, func = last_name(call.func), call.func
    own = _path(source, func.value) if isinstance(func, ast.Attribute) else ""
    module = dotted(func).partition(".")[0] in source.imported
    method = own or (isinstance(func, ast.Attribute) and not module)
    first = own if method else _path(source, (call.args or [call])[0])
    mode = argument(call, "mode", 0 if own else 1)
    if name in ("open", "File", "memmap") and mode and not ast.unparse(mode).startswith("'r"):
        return "writes" if first == path and ast.unparse(mode)[1:2] in [*"wax"] else ""
    if first == path and READS.fullmatch(name):
        return "reads"
    given = own or next(filter(None, (_path(source, each) for each in call.args[:2])), "")
    whole = name if own else source.full_name(func) or f".{name}"
    return "writes" if given == path and WRITES.fullmatch(whole) else ""
