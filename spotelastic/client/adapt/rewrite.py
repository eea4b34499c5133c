"""Writes the lines of a Checkpointer into a script's tree, around what was found in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import libcst as cst

from spotelastic.client.adapt.data import REPLACED, ElasticData
from spotelastic.client.adapt.epoch_end import EpochEnd
from spotelastic.client.adapt.loops import Iteration, TrainingLoop, loss_of
from spotelastic.client.adapt.resume import ResumedByHand
from spotelastic.client.adapt.source import Source, found, is_name, last_name
from spotelastic.client.adapt.state import passed

Statement: TypeAlias = cst.BaseStatement
Change = Callable[[cst.CSTNode], cst.CSTNode | cst.FlattenSentinel[Any] | cst.RemovalSentinel]
IMPORT = "import spotelastic as se"
SKIPPED = "# The last epoch that was begun is entered again, for what follows its steps."


@dataclass(frozen=True, slots=True)
class NamesGiven:
    """The names of what is added, none of which the script uses."""

    checkpoint: str
    step: str
    batches: str
    first: str
    last_step: str
    state: str
    epoch: str
    """Of epochs that have no name: `for _ in range(epochs)`."""

    @classmethod
    def free(cls, source: Source, *, number_is_step: bool) -> "NamesGiven":
        """Return free names. `step` is taken where the script counts its steps by that name."""
        step = ("this_step", "train_step") if number_is_step else ("step", "this_step")
        return cls(
            source.free("checkpoint", "checkpointer"),
            source.free(*step),
            source.free("batches", "train_batches"),
            source.free("first", "first_epoch"),
            source.free("last_step", "up_to_step"),
            source.free("state", "saved_state"),
            source.free("epoch", "epoch_number"),
        )


@dataclass
class Rewriting:
    """Collects the changes of nodes, and applies them all at once."""

    source: Source
    changes: dict[int, Change] = field(default_factory=dict)

    def change(self, node: cst.CSTNode, change: Change) -> None:
        """Replace a node by what this returns of it, whose own parts are replaced already."""
        earlier = self.changes.get(id(node))
        self.changes[id(node)] = change if earlier is None else _both(earlier, change)

    def replace(self, node: cst.CSTNode, text: str) -> None:
        """Replace an expression."""
        self.change(node, lambda _: _expression(text))

    def applied(self) -> str:
        """Return the changed script."""
        changed = self.source.module.visit(_Changer(self.changes))
        return changed.code


def _both(first: Change, second: Change) -> Change:
    return lambda node: second(cast(cst.CSTNode, first(node)))


class _Changer(cst.CSTTransformer):
    def __init__(self, changes: dict[int, Change]) -> None:
        super().__init__()
        self._changes = changes

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[Any] | cst.RemovalSentinel:
        change = self._changes.get(id(original_node))
        return updated_node if change is None else change(updated_node)


def rewritten(
    source: Source,
    loop: TrainingLoop,
    state: Sequence[str],
    data: ElasticData | None,
    resume: ResumedByHand | None,
    end: EpochEnd,
) -> str:
    """Return the script with a Checkpointer around its loop."""
    counted = loop.over.counter is not None and isinstance(loop.over.counter, cst.Name)
    is_step = counted and is_name(cast(cst.CSTNode, loop.over.counter), "step")
    names = NamesGiven.free(source, number_is_step=is_step)
    work = Rewriting(source)
    _loop_of_steps(work, loop, names, end)
    if loop.epochs is not None:
        _loop_of_epochs(work, loop, names, resume)
    entries = [f'"{name}": {name}' for name in state]
    if data is not None:
        entries.append(f'"{data.sampler}": {data.sampler}')
        _sampler(work, data)
    removed = (*resume.loading, *resume.beginning) if resume is not None else ()
    for gone in (*removed, *end.moved):
        work.change(gone, lambda _: cst.RemoveFromParent())
    mapping = f"{{{', '.join(entries)}}}"
    work.change(
        loop.outermost, lambda node: _within(cast(cst.For, node), mapping, loop, names, end)
    )
    text = work.applied()
    return _with_import(text, drop="" if data is None else "DistributedSampler")


# -- the loop of steps -----------------------------------------------------------------------------


def _loop_of_steps(work: Rewriting, loop: TrainingLoop, names: NamesGiven, end: EpochEnd) -> None:
    over, source = loop.over, work.source
    total = _steps_of_a_pass(source, over)
    if loop.call is not None:
        up_to = names.last_step
    elif loop.epochs is not None:
        up_to = _times(_number_of_epoch(loop, names, more=1), total)
    else:
        up_to = total
    steps = f"{names.checkpoint}.steps({up_to})"
    bar = over.bar
    if bar is None:
        work.replace(loop.loop.iter, steps)
    else:
        shown = _expression(steps)
        work.change(bar, lambda node: _shown(cast(cst.Call, node), shown))
        if loop.loop.iter is not bar and not isinstance(loop.loop.iter, cst.Name):
            work.change(loop.loop.iter, lambda node: cast(cst.Call, node).args[0].value)
    work.replace(loop.loop.target, names.step)
    work.change(loop.loop.body, lambda node: _block(node, work.source, loop, names, end))
    if over.is_range:
        return
    batches = f"{names.batches} = {names.checkpoint}.batches({source.code(over.source)})"
    if loop.epochs is not None:  # else `_within` writes it
        work.change(loop.loop, lambda node: _before(cast(cst.For, node), batches))


def _shown(call: cst.Call, steps: cst.BaseExpression) -> cst.Call:
    """Let a bar go over the steps."""
    if last_name(call.func) == "trange":
        call = call.with_changes(func=_tqdm(call.func))
    first, *others = call.args
    return call.with_changes(args=[first.with_changes(value=steps), *others])


def _tqdm(func: cst.BaseExpression) -> cst.BaseExpression:
    """trange(n) is tqdm(range(n)), from the same module."""
    if isinstance(func, cst.Attribute):
        return func.with_changes(attr=cst.Name("tqdm"))
    return cst.Name("tqdm")


def _before(loop: cst.For, text: str) -> cst.FlattenSentinel[Any]:
    """Put a line before a loop, below the comments that belong to it."""
    line = cast(cst.SimpleStatementLine, _line(text))
    line = line.with_changes(leading_lines=loop.leading_lines)
    return cst.FlattenSentinel([line, loop.with_changes(leading_lines=[])])


def _steps_of_a_pass(source: Source, over: Iteration) -> str:
    if not over.is_range:
        return f"len({source.code(over.source)})"
    return over.stop if over.start == "0" else f"{_part(over.stop)} - {_part(over.start)}"


def _number_of_epoch(loop: TrainingLoop, names: NamesGiven, more: int = 0) -> str:
    """Return the number of the epoch, counted from `more`."""
    assert loop.epochs_over is not None and isinstance(loop.epochs_over.counter, cst.Name)
    name, start = loop.epochs_over.counter.value, loop.epochs_over.start
    name = names.epoch if name == "_" else name
    if not start.isdigit():
        return f"{name} + {more}" if more else name  # it begins with 0 from now on
    shift = more - int(start)
    return name if shift == 0 else f"{name} {'+' if shift > 0 else '-'} {abs(shift)}"


def _block(
    body: cst.CSTNode, source: Source, loop: TrainingLoop, names: NamesGiven, end: EpochEnd
) -> cst.CSTNode:
    """Put the body of the loop into the block of a step."""
    over, lines = loop.over, []
    number = f"{names.step}.number - 1"
    if loop.epochs is not None:
        passes = _steps_of_a_pass(source, over)
        number = f"({number}) % {_part(passes)}"
    if isinstance(over.counter, cst.Name) and _is_used(loop, over.counter.value):
        start = over.start if over.is_range else over.counter_start
        shifted = number if start == "0" else f"{number} + {_part(start)}"
        lines.append(_line(f"{over.counter.value} = {_shorter(shifted)}"))
    if over.target is not None:
        value = _expression(f"next({names.batches})")
        taken = cst.Assign([cst.AssignTarget(_without_brackets(over.target))], value)
        lines.append(cst.SimpleStatementLine([taken]))
    indented = cast(cst.IndentedBlock, body)
    statements = [*lines, *indented.body]
    if end.moved:
        passes = _part(_steps_of_a_pass(source, over))
        last = _line(f"if {names.step}.number % {passes} == 0:\n    pass\n")
        moved = cst.IndentedBlock([each.with_changes(leading_lines=[]) for each in end.moved])
        statements.append(cast(cst.If, last).with_changes(body=moved))
    if loss := loss_of(loop):
        statements.append(_line(f"{names.step}.loss = {loss}"))
    block = _with(f"with {names.step}:", indented.with_changes(body=statements))
    return indented.with_changes(body=[block], header=cst.TrailingWhitespace(), footer=())


def _without_brackets(
    target: cst.BaseAssignTargetExpression,
) -> cst.BaseAssignTargetExpression:
    if isinstance(target, cst.Tuple) and len(target.elements) > 1:
        return target.with_changes(lpar=[], rpar=[])
    return target


def _shorter(number: str) -> str:
    """Write `step.number - 1 + 1` as `step.number`."""
    return number.replace(".number - 1 + 1", ".number")


def _is_used(loop: TrainingLoop, name: str) -> bool:
    return any(is_name(each, name) for each in found(loop.loop.body, cst.Name))


# -- the epochs around it --------------------------------------------------------------------------


def _loop_of_epochs(
    work: Rewriting, loop: TrainingLoop, names: NamesGiven, resume: ResumedByHand | None
) -> None:
    over = loop.epochs_over
    assert over is not None and loop.epochs is not None
    counter = cast(cst.Name, over.counter)
    if counter.value == "_":
        work.replace(loop.epochs.target, names.epoch)
    start = over.start if over.start.isdigit() and resume is None else "0"
    begin = names.first if start == "0" else f"{names.first} + {start}"
    call = cast(cst.Call, over.source)
    ranged = cst.parse_expression(f"range({begin}, {over.stop})")
    counted = cast(cst.Call, ranged).args
    kept = [arg for arg in call.args if arg.keyword is not None]
    work.change(call, lambda node: cast(cst.Call, node).with_changes(args=[*counted, *kept]))
    if loop.call is not None:
        _passed_on(work, loop, names)


def _passed_on(work: Rewriting, loop: TrainingLoop, names: NamesGiven) -> None:
    """Give the Checkpointer and the last step of the epoch to the function that trains."""
    assert loop.call is not None and isinstance(loop.scope, cst.FunctionDef)
    total = _steps_of_a_pass_outside(work.source, loop)
    last = _times(_number_of_epoch(loop, names, more=1), total)
    more = cast(
        cst.Call,
        cst.parse_expression(f"f({names.checkpoint}={names.checkpoint}, {names.last_step}={last})"),
    ).args

    def call(node: cst.CSTNode) -> cst.CSTNode:
        args = list(cast(cst.Call, node).args)
        if args and not isinstance(args[-1].comma, cst.Comma):
            args[-1] = args[-1].with_changes(comma=_comma())
        return node.with_changes(args=[*args, *more])

    def parameters(node: cst.CSTNode) -> cst.CSTNode:
        known = cast(cst.Parameters, node)
        added = [cst.Param(cst.Name(each)) for each in (names.checkpoint, names.last_step)]
        if any(each.default is not None for each in known.params) or known.kwonly_params:
            return known.with_changes(
                kwonly_params=[*known.kwonly_params, *added],
                star_arg=known.star_arg
                if isinstance(known.star_arg, cst.Param)
                else cst.ParamStar(),
            )
        return known.with_changes(params=[*known.params, *added])

    work.change(loop.call, call)
    work.change(loop.scope.params, parameters)


def _steps_of_a_pass_outside(source: Source, loop: TrainingLoop) -> str:
    """Return the steps of an epoch, in the words of the function that goes over the epochs."""
    if loop.over.is_range or not isinstance(loop.over.source, cst.Name):
        return _steps_of_a_pass(source, loop.over)
    name = loop.over.source.value
    return f"len({passed(source, loop).get(name, name)})"


def _within(
    node: cst.For, mapping: str, loop: TrainingLoop, names: NamesGiven, end: EpochEnd
) -> cst.FlattenSentinel[Any]:
    """Put the outermost loop into the block of the Checkpointer."""
    before: list[Statement] = []
    if loop.epochs is not None and loop.epochs_over is not None:
        total = _outside_total(loop)
        done = f"{names.checkpoint}.restore()"
        if end.comes_again:
            done = f"max({done} - 1, 0)"
        line = cast(cst.SimpleStatementLine, _line(f"{names.first} = {done} // {_part(total)}"))
        if end.comes_again:
            comment = cst.EmptyLine(comment=cst.Comment(SKIPPED))
            line = line.with_changes(leading_lines=[comment])
        before.append(line)
    elif not loop.over.is_range:
        code = cst.Module([]).code_for_node(loop.over.source)
        before.append(_line(f"{names.batches} = {names.checkpoint}.batches({code})"))
    body = cst.IndentedBlock([*before, node.with_changes(leading_lines=[])])
    state = cast(cst.SimpleStatementLine, _line(f"{names.state} = {mapping}"))
    opened = f"with se.Checkpointer({names.state}) as {names.checkpoint}:"
    return cst.FlattenSentinel(
        [state.with_changes(leading_lines=node.leading_lines), _with(opened, body)]
    )


def _outside_total(loop: TrainingLoop) -> str:
    source = cst.Module([])
    if loop.over.is_range:
        start, stop = loop.over.start, loop.over.stop
        return stop if start == "0" else f"{_part(stop)} - {_part(start)}"
    name = source.code_for_node(loop.over.source)
    return f"len({_argument_of(loop, name)})"


def _argument_of(loop: TrainingLoop, name: str) -> str:
    """Return what a loader is called where the epochs are."""
    if loop.call is None or not isinstance(loop.scope, cst.FunctionDef):
        return name
    parameters = [each.name.value for each in loop.scope.params.params]
    for position, arg in enumerate(loop.call.args):
        keyword = arg.keyword.value if arg.keyword is not None else None
        if keyword == name or (keyword is None and parameters[position : position + 1] == [name]):
            return cst.Module([]).code_for_node(arg.value)
    return name


# -- the data --------------------------------------------------------------------------------------


def _sampler(work: Rewriting, data: ElasticData) -> None:
    """Make an ElasticSampler, and give it to the loader."""

    sampler = cast(cst.Call, cst.parse_expression(f"f(batch_sampler={data.sampler})")).args[0]

    def call(node: cst.CSTNode) -> cst.CSTNode:
        known = cast(cst.Call, node)
        kept: list[cst.Arg] = []
        for number, arg in enumerate(known.args):
            name = arg.keyword.value if arg.keyword is not None else ""
            if number == 0 and data.dataset:
                kept.append(arg.with_changes(value=cst.Name(data.dataset)))
            elif name not in REPLACED and not (number == 1 and not name):
                kept.append(arg)
            elif all(each.keyword is None or each.value is not sampler.value for each in kept):
                kept.append(sampler.with_changes(comma=arg.comma))
        if all(each.value is not sampler.value for each in kept):
            kept[-1] = kept[-1].with_changes(comma=_comma())
            kept.append(sampler)
        kept[-1] = kept[-1].with_changes(comma=known.args[-1].comma)
        return known.with_changes(args=kept)

    work.change(data.call, call)
    if data.former is not None:
        work.replace(data.former.value, data.made)
        return
    holder = next(
        each
        for each in work.source.around(data.loader.statement)
        if isinstance(each, cst.SimpleStatementLine)
    )
    made = [f"{data.sampler} = {data.made}"]
    if data.dataset:
        made.insert(0, f"{data.dataset} = {work.source.code(data.call.args[0].value)}")

    def before(node: cst.CSTNode) -> cst.FlattenSentinel[Any]:
        known = cast(cst.SimpleStatementLine, node)
        first, *others = (cast(cst.SimpleStatementLine, _line(each)) for each in made)
        first = first.with_changes(leading_lines=known.leading_lines)
        return cst.FlattenSentinel([first, *others, known.with_changes(leading_lines=[])])

    work.change(holder, before)


# -- small parts -----------------------------------------------------------------------------------


def _line(text: str) -> Statement:
    return cast(Statement, cst.parse_statement(text))


def _expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


def _comma() -> cst.Comma:
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _with(opened: str, body: cst.BaseSuite) -> cst.With:
    made = cast(cst.With, cst.parse_statement(f"{opened}\n    pass\n"))
    return made.with_changes(body=body)


def _part(text: str) -> str:
    """Return an expression in brackets, if it is more than a name, a number or a call."""
    parsed = cst.parse_expression(text)
    simple = (cst.Name, cst.Attribute, cst.Call, cst.Integer, cst.Subscript)
    return text if isinstance(parsed, simple) else f"({text})"


def _times(number: str, total: str) -> str:
    return f"{_part(number)} * {_part(total)}"


def _with_import(text: str, drop: str) -> str:
    """Import spotelastic after the last import at the top, and drop one that is used no more."""
    module = cst.parse_module(text)
    last = -1
    for number, statement in enumerate(module.body):
        if _is_import(statement):
            last = number
        elif not (number == 0 and _is_text(statement)):
            break
    added = cast(cst.SimpleStatementLine, _line(IMPORT)).with_changes(
        leading_lines=[cst.EmptyLine(indent=False)]
    )
    body = list(module.body)
    body.insert(last + 1 if last >= 0 else int(_is_text(body[0])), added)
    changed = module.with_changes(body=body)
    uses = [name for name in found(changed, cst.Name) if name.value == drop]
    return changed.code if not drop or len(uses) != 1 else _without_alias(changed, drop)


def _is_import(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    return all(isinstance(each, cst.Import | cst.ImportFrom) for each in statement.body)


def _is_text(statement: cst.CSTNode) -> bool:
    """Whether it is a docstring."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.BaseString)


def _without_alias(module: cst.Module, name: str) -> str:
    """Drop a name from the import that brings it."""
    (alias,) = (each for each in found(module, cst.ImportAlias) if is_name(each.name, name))

    class Dropping(cst.CSTTransformer):
        def leave_ImportFrom(
            self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
        ) -> cst.ImportFrom | cst.RemovalSentinel:
            if isinstance(original_node.names, cst.ImportStar) or alias not in original_node.names:
                return updated_node
            kept = [each for each in original_node.names if each is not alias]
            if not kept:
                return cst.RemoveFromParent()
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return updated_node.with_changes(names=kept)

    return module.visit(Dropping()).code
