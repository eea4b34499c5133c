"""Writes the lines of a Checkpointer into a script, around what was found in it.

Lines are moved in, lines are added, and a few expressions give way to others. All else stays as it
is written.
"""

import ast
from collections.abc import Sequence

from spotelastic.client.adapt.data import REPLACED, ElasticData
from spotelastic.client.adapt.loops import STEPS, TrainingLoop, loss_of, statement_of
from spotelastic.client.adapt.names import Carried
from spotelastic.client.adapt.source import Source, argument, dotted

IMPORT = "import spotelastic as se"


class Text:
    """The lines of a script, with what is added before and after each, and how far it moves in."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.lines = [line.rstrip("\r\n") for line in source.lines]
        self._end = "\r\n" if source.text.find("\r\n") >= 0 else "\n"
        self._moved = [0] * len(self.lines)
        self._before: list[list[str]] = [[] for _ in self.lines]
        self._after: list[list[str]] = [[] for _ in self.lines]
        self._cuts: list[tuple[int, int, int, int, str]] = []

    def indent(self, node: ast.AST) -> str:
        """Return what stands before a statement."""
        line = self.lines[node.lineno - 1]  # type: ignore[attr-defined]
        return line[: len(line) - len(line.lstrip())]

    def move(self, first: int, last: int, by: int = 1) -> None:
        """Move lines in, by so many levels."""
        for line in range(first, last + 1):
            self._moved[line - 1] += by

    def before(self, line: int, *added: str) -> None:
        """Add lines before this one, above what was added before."""
        self._before[line - 1][:0] = added

    def after(self, line: int, *added: str) -> None:
        """Add lines after this one."""
        self._after[line - 1] += added

    def replace(self, node: ast.AST, text: str) -> None:
        """Replace an expression."""
        spot: ast.expr = node  # type: ignore[assignment]
        assert spot.end_lineno is not None and spot.end_col_offset is not None
        self.cut(spot.lineno, spot.col_offset, spot.end_lineno, spot.end_col_offset, text)

    def cut(self, first: int, begin: int, last: int, end: int, text: str) -> None:
        """Replace what is between two places, given as Python's tree does."""
        self._cuts.append((first, begin, last, end, text))

    def written(self, unit: str) -> str:
        """Return the changed script. `unit` is what a level of indentation is."""
        lines = [*self.lines]
        gone: set[int] = set()
        for first, begin, last, end, text in sorted(self._cuts, reverse=True):
            head = lines[first - 1].encode()[:begin].decode()
            tail = lines[last - 1].encode()[end:].decode()
            lines[first - 1] = head + text + tail
            gone |= {*range(first, last)}
        written: list[str] = []
        for number, line in enumerate(lines):
            written += self._before[number]
            if number not in gone:
                is_text = number + 1 in self._source.inside_strings
                moved = "" if is_text or not line.strip() else unit * self._moved[number]
                written.append(moved + line)
            written += self._after[number]
        return self._end.join(written) + (self._end if self._source.text.endswith("\n") else "")


def rewritten(
    source: Source,
    loop: TrainingLoop,
    objects: Sequence[str],
    names: Carried,
    data: ElasticData | None,
) -> str:
    """Return the script with a Checkpointer around its loop."""
    text = Text(source)
    outer, inner, epochs = loop.outermost, loop.loop, loop.epochs
    base, within = text.indent(outer), text.indent(inner)
    unit = text.indent(inner.body[0]).removeprefix(within) or "    "
    named = loop.counter is not None and loop.counter.id == "step"
    checkpoint = source.free("checkpoint", "checkpointer")
    step = source.free(*(("this_step", "train_step") if named else ("step", "this_step")))
    batches, state = source.free("batches", "train_batches"), source.free("state", "saved_state")
    length = loop.length if _is_short(loop.length) else f"({loop.length})"
    number = f"({step}.number - 1) % {length}" if epochs else f"{step}.number - 1"

    def get(name: str) -> str:
        return f'{name} = {state}["{name}"]'

    def put(name: str) -> str:
        return f'{state}["{name}"] = {name}'

    # The steps.
    deep = within + unit * 3
    lines = []
    if loop.counter is not None and _reads(inner.body, loop.counter.id):
        shown = number if loop.start == "0" else f"{number} + {loop.start}"
        lines.append(f"{loop.counter.id} = {shown}".replace(".number - 1 + 1", ".number"))
    if loop.target is not None:
        taken = source.code(loop.target)
        is_bracketed = isinstance(loop.target, ast.Tuple) and taken.startswith("(")
        lines.append(f"{taken[1:-1] if is_bracketed else taken} = next({batches})")
    for name in names.to_step:
        if reset := names.resets.get(name):
            lines.append(f"{get(name)} if {number} else {reset}")
        else:
            lines.append(get(name))
    steps = f"{checkpoint}.steps({loop.length})"
    if epochs is not None:
        epoch = dotted(epochs.target) if dotted(epochs.target) != "_" else source.free("epoch")
        epoch_number = source.free("epoch_number") if _begins(epochs) else epoch
        steps = f"{checkpoint}.steps(({epoch_number} + 1) * {length})"
    text.move(_top(source, inner), _end(inner))
    text.before(_top(source, inner), f"{within + unit * 2}with {step}:", *(deep + x for x in lines))
    ended = [put(name) for name in names.of_step]
    if names.numbers:
        ended.append(f"if {step}.number % {length} == 0:")
        ended += [f'{unit}{state}["{n}"] = {n}.item()' for n in names.numbers]
    text.after(_end(inner), *(deep + line for line in ended))
    if loss := loss_of(loop):
        said = statement_of(source, loop.backward)
        depth = text.indent(said)
        text.after(said.end_lineno or 0, f"{depth}{unit * 2}{step}.loss = {loss}")
    text.replace(inner.target, step)
    text.replace(loop.replaced, loop.bar.replace(STEPS, steps))
    # The epochs.
    if epochs is not None:
        loaded = [get(name) for name in names.to_epoch]
        head = [f"{epoch} = {epoch_number} + {_begins(epochs)}"] if _begins(epochs) else []
        text.before(_top(source, epochs), *(base + unit * 2 + line for line in (*head, *loaded)))
        if data is not None:
            text.before(
                inner.lineno,
                f"{within + unit}{batches} = {checkpoint}.batches({source.code(loop.over)})",
            )
        tail = [get(name) for name in names.to_end]
        tail += [f'{n} = torch.tensor({state}["{n}"], dtype=torch.float64)' for n in names.numbers]
        text.after(_end(inner), *(within + unit + line for line in tail))
        text.after(_end(epochs), *(within + unit + put(name) for name in names.to_epoch))
        call = _range(epochs)
        count = source.code(call.args[-1])
        total = f"{count} - {_begins(epochs)}" if _begins(epochs) else count
        total = total.removesuffix(f" + {_begins(epochs)} - {_begins(epochs)}")
        text.replace(call, f"{checkpoint}.epochs({total}, {loop.length})")
        text.replace(epochs.target, epoch_number)
    # Around them.
    entries = [f'"{name}": {name}' for name in objects]
    entries += [f'"{name}": {first}' for name, first in names.initial.items()]
    entries += [f'"{n}": 0.0' for n in names.numbers]
    if data is not None:
        entries.append(f'"sampler": {data.named}')
        _sampler(source, text, data)
    text.move(outer.lineno, _end(outer))
    opening = [
        f"{base}{state} = {{{', '.join(entries)}}}",
        f"{base}with se.Checkpointer({state}) as {checkpoint}:",
    ]
    if epochs is None and data is not None:
        opening.append(f"{base + unit}{batches} = {checkpoint}.batches({source.code(loop.over)})")
    text.before(outer.lineno, *opening)
    text.after(_end(outer), *(base + unit + get(name) for name in names.after))
    place = _import_line(source)
    if place:
        text.after(place, IMPORT)
    else:
        text.before(1, IMPORT)
    return text.written(unit)


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _top(source: Source, loop: ast.For) -> int:
    """Return the line after a loop's head: comments above the first statement move with it."""
    line = loop.iter.end_lineno or loop.lineno
    while not source.lines[line - 1].split("#")[0].rstrip().endswith(":"):
        line += 1
    return line + 1


def _range(epochs: ast.For) -> ast.Call:
    call = epochs.iter
    assert isinstance(call, ast.Call)
    if dotted(call.func) != "range":
        call = call.args[0]  # type: ignore[assignment]
    assert isinstance(call, ast.Call)
    return call


def _begins(epochs: ast.For) -> int:
    """Return the number of the first epoch."""
    args = _range(epochs).args
    return args[0].value if len(args) == 2 else 0  # type: ignore[attr-defined,no-any-return]


def _reads(body: Sequence[ast.stmt], name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name for part in body for each in ast.walk(part)
    )


def _is_short(text: str) -> bool:
    return isinstance(ast.parse(text, mode="eval").body, ast.Name | ast.Call | ast.Constant)


def _sampler(source: Source, text: Text, data: ElasticData) -> None:
    """Give the loader an ElasticSampler in place of what it takes over."""
    call, given = data.call, argument(data.call, "sampler")
    name = source.free("sampler", "train_sampler")
    if data.former is not None and isinstance(given, ast.Name):
        name = given.id
        text.replace(data.former, data.made)
    else:
        line = statement_of(source, call)
        made = [f"{text.indent(line)}{name} = {data.made}"]
        if data.dataset is not None:
            made.insert(0, f"{text.indent(line)}{data.its_name} = {source.code(data.dataset)}")
        text.before(line.lineno, *made)
    if data.dataset is not None:
        text.replace(data.dataset, data.its_name)
    spots: list[tuple[ast.AST, bool]] = [(arg, n > 0) for n, arg in enumerate(call.args)]
    spots += [(keyword, keyword.arg in REPLACED) for keyword in call.keywords]
    new = f"batch_sampler={name}"
    if not any(gone for _, gone in spots):
        last: ast.expr = spots[-1][0]  # type: ignore[assignment]
        text.cut(*_place(last)[2:], *_place(last)[2:], f", {new}")
        return
    previous: ast.AST | None = None
    for number, (spot, gone) in enumerate(spots):
        if not gone:
            previous = spot
        elif new:
            text.replace(spot, new)
            new, previous = "", spot
        elif number + 1 < len(spots):
            text.cut(*_place(spot)[:2], *_place(spots[number + 1][0])[:2], "")
        else:
            assert previous is not None
            text.cut(*_place(previous)[2:], *_place(spot)[2:], "")


def _place(node: ast.AST) -> tuple[int, int, int, int]:
    spot: ast.expr = node  # type: ignore[assignment]
    return spot.lineno, spot.col_offset, spot.end_lineno or 0, spot.end_col_offset or 0


def _import_line(source: Source) -> int:
    """Return the last line of the imports that the script begins with."""
    last = 0
    for number, each in enumerate(source.tree.body):
        is_text = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        if not isinstance(each, ast.Import | ast.ImportFrom) and not (number == 0 and is_text):
            break
        last = each.end_lineno or 0
    return last
