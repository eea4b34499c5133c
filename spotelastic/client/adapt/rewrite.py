"""Writes the lines of a Checkpointer into a script, around what was found in it.

Lines are moved in, lines are added, and a few expressions give way to others. All else stays as it
is written.
"""

import ast
from collections.abc import Sequence

from spotelastic.client.adapt.loops import TrainingLoop, following, loss_of
from spotelastic.client.adapt.names import Carried
from spotelastic.client.adapt.objects import REPLACED, ElasticData
from spotelastic.client.adapt.ranks import ScriptRanks
from spotelastic.client.adapt.source import Source, argument, dotted, read


class Text:
    """The lines of a script, with what is added before and after each, and how far it moves in."""

    def __init__(self, source: Source) -> None:
        self._end = source.ends[0]
        self._lines = [line + end for line, end in zip(source.lines, source.ends, strict=True)]
        self._moved = [0] * (len(self._lines) + 1)
        self._before: list[list[str]] = [[] for _ in self._moved]
        self._after: list[list[str]] = [[] for _ in self._moved]
        self._gone: set[int] = set()
        self._cuts: list[tuple[ast.expr, str]] = []
        self._in_strings = {
            line
            for t in source.tokens
            if "\n" in t.string and t.string.strip()
            for line in range(t.start[0] + 1, t.end[0] + 1)
        }

    def indent(self, node: ast.stmt) -> str:
        """Return what stands before a statement."""
        line = self._lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def move(self, first: int, last: int) -> None:
        """Move lines in, by a level."""
        for line in range(first, last + 1):
            self._moved[line] += 1

    def before(self, line: int, *added: str) -> None:
        """Add lines before this one, below what was added before."""
        self._before[line] += [each + self._end for each in added]

    def after(self, line: int, *added: str) -> None:
        """Add lines after this one."""
        self._after[line] += [each + self._end for each in added]

    def replace(self, node: ast.expr, text: str) -> None:
        """Replace an expression."""
        self._cuts.append((node, text))

    def written(self, unit: str) -> str:
        """Return the changed script. `unit` is what a level of indentation is."""
        lines = ["", *self._lines]
        for node, text in sorted(self._cuts, key=lambda cut: (-cut[0].lineno, -cut[0].col_offset)):
            first, last = node.lineno, node.end_lineno or node.lineno
            tail = lines[last].encode()[node.end_col_offset :].decode()
            lines[first] = lines[first].encode()[: node.col_offset].decode() + text + tail
            self._gone |= {*range(first + 1, last + 1)}
        made: list[str] = []
        for number, line in enumerate(lines):
            made += self._before[number]
            moves = line.strip() and number not in self._in_strings
            if number not in self._gone:
                made.append(unit * self._moved[number] + line if moves else line)
            if self._after[number] and number == len(self._lines):
                made.append(self._end)
            made += self._after[number]
        return "".join(made)


def rewritten(
    source: Source,
    loop: TrainingLoop,
    objects: Sequence[str],
    names: Carried,
    data: Sequence[ElasticData],
) -> str:
    """Return the script with a Checkpointer around its loop."""
    writer = _Writer(source, loop, names, data)
    writer.block()
    if loop.epochs is not None:
        writer.epochs(loop.epochs)
    writer.around(objects)
    return writer.text.written(writer.unit)


class _Writer:
    """Puts the lines of a Checkpointer into a text."""

    def __init__(
        self, source: Source, loop: TrainingLoop, names: Carried, data: Sequence[ElasticData]
    ) -> None:
        self.text = Text(source)
        self._source, self._loop, self._names, self._data = source, loop, names, data
        self._trains = any(each.trains for each in data)
        self._ranks = ScriptRanks(source, loop)
        self._base = self.text.indent(loop.outermost)
        self._within = self.text.indent(loop.loop)
        self.unit = self.text.indent(loop.loop.body[0]).removeprefix(self._within)
        self._se = source.library
        self._checkpoint = source.free("checkpoint", "checkpointer")
        steps = ("this_step",) if loop.counter == "step" else ("step", "this_step")
        self._step, self._state = source.free(*steps), source.free("state", "saved_state")
        self._batches = source.free("batches", "train_batches")
        plain = "(" in loop.length or loop.length.isidentifier()
        self._length = loop.length if plain else f"({loop.length})"
        number = f"{self._step}.number - 1"
        self._number = f"({number}) % {self._length}" if loop.epochs else number

    def _get(self, *names: str) -> list[str]:
        saved = {name: f'{self._state}["{name}"]' for name in names}
        saved[self._names.loss] = f"{self._checkpoint}.loss"
        return [f"{name} = {saved[name]}" for name in names]

    def _put(self, *names: str) -> list[str]:
        return [f'{self._state}["{name}"] = {name}' for name in names]

    def block(self) -> None:
        """Put the body of the loop into the block of a step."""
        text, loop, inner = self.text, self._loop, self._loop.loop
        lines = self._ranks.lines(inner.body)
        if loop.counter and (
            loop.counter in read(inner.body) or loop.counter in self._names.initial
        ):
            more = "" if loop.start == "0" else f" + {loop.start}"
            lines.append(f"{loop.counter} = {self._number}{more}")
        if loop.target is not None:
            lines.append(f"{self._source.code(loop.target)} = next({self._batches})")
        for name in self._names.of_step:
            reset = self._names.resets.get(name)
            begun = f" if {self._number} else {reset}" if reset else ""
            lines += [line + begun for line in self._get(name) if name != loop.counter]
        first, deep = _first_line(self._source, inner), self._within + self.unit * 3
        text.move(first, _end(inner))
        text.before(first, f"{self._within}{self.unit * 2}with {self._step}:")
        text.before(first, *(deep + line for line in lines))
        text.after(_end(inner), *(deep + line for line in self._put(*self._names.of_step)))
        if found := loss_of(self._source, loop):
            loss, where = found
            made = [f"{self._step}.loss = {loss}", *self._mean(loss)]
            text.after(_end(where), *(text.indent(where) + self.unit * 2 + each for each in made))
        text.replace(inner.target, self._step)
        if loop.epochs is None:
            text.replace(loop.replaced, f"{self._checkpoint}.steps({loop.length})")

    def _mean(self, loss: str) -> list[str]:
        """Have the mean over all workers added up in place of this worker's loss."""
        aliases = {whole: alias for alias, whole in self._source.imported.items()}
        dist = aliases.get("torch.distributed", "torch.distributed")
        mean = self._source.free("mean_loss", "mean_of_losses")
        for each in self._names.means:
            self.text.replace(each, f"{mean}.item() / {dist}.get_world_size()")
        lines = f"{mean} = {loss}.detach().clone()", f"{dist}.all_reduce({mean})"
        return [*lines] if self._names.means else []

    def epochs(self, epochs: ast.For) -> None:
        """Have the loop of epochs begin where the run is."""
        text, loop, names = self.text, self._loop, self._names
        *first, stop = epochs.iter.args  # type: ignore[attr-defined]
        begin = self._source.code(first[0]) if first else "0"
        epoch = number = dotted(epochs.target)
        count = self._source.less(stop, begin)
        lines = [*self._ranks.lines([*loop.parts[0], loop.loop.iter]), *self._get(*names.of_epoch)]
        if begin != "0" or epoch == "_":
            number = self._source.free("epoch_number")
        if begin != "0":
            lines.insert(0, f"{epoch} = {number} + {begin}")
        deep = self._base + self.unit * 2
        text.before(_first_line(self._source, epochs), *(deep + line for line in lines))
        if self._trains:
            text.before(loop.loop.lineno, deep + self._take())
        text.replace(loop.replaced, f"{self._checkpoint}.steps(({number} + 1) * {self._length})")
        text.replace(epochs.iter, f"{self._checkpoint}.epochs({count}, {loop.length})")
        text.replace(epochs.target, number)
        told = [*names.of_step, *([names.loss] if names.loss else [])]
        lines = [*self._ranks.lines(loop.parts[1]), *self._get(*told)]
        text.after(_end(loop.loop), *(deep + line for line in lines))
        text.after(_end(epochs), *(deep + line for line in self._put(*names.of_epoch)))

    def around(self, objects: Sequence[str]) -> None:
        """Put the outermost loop into the block of the Checkpointer."""
        text, outer, names = self.text, self._loop.outermost, self._names
        entries = [f'"{name}": {name}' for name in objects]
        entries += [f'"{name}": {value}' for name, value in names.initial.items()]
        opened = [f"with {self._se}.Checkpointer({self._state}) as {self._checkpoint}:"]
        for each in self._data:
            _sampler(self._source, text, each)
        if self._trains:
            entries.append(f'"sampler": {self._source.code(self._loop.over)}.batch_sampler')
            opened += [self.unit + self._take()] if self._loop.epochs is None else []
        opened.insert(0, f"{self._state} = {{{', '.join(entries)}}}")
        text.move(outer.lineno, _end(outer))
        text.before(outer.lineno, *(self._base + line for line in opened))
        lines = [*self._get(*names.after), *self._ranks.lines(following(self._source, self._loop))]
        text.after(_end(outer), *(self._base + self.unit + line for line in lines))
        imported = "import spotelastic as se" if self._se == "se" else f"import {self._se}"
        if line := _import_line(self._source):
            text.after(line, imported)
        else:  # below what the interpreter and the editor read in the first lines
            text.before(self._source.tree.body[0].lineno, imported)

    def _take(self) -> str:
        loader = self._source.code(self._loop.over)
        return f"{self._batches} = {self._checkpoint}.batches({loader})"


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _first_line(source: Source, loop: ast.For) -> int:
    """Return the line after a loop's head: comments above the first statement move with it."""
    line = _end(loop.iter)
    before = source.lines[line - 1].encode()[: loop.iter.end_col_offset].decode()
    place = line, len(before)  # tokens count letters, and trees bytes
    ends = [t.start[0] for t in source.tokens if t.start >= place and t.string == ":"]
    return ends[0] + 1


def _sampler(source: Source, text: Text, data: ElasticData) -> None:
    """Give the loader an ElasticSampler in place of what it takes over."""
    call, given = data.call, argument(data.call, "sampler")
    if data.former is not None:
        name = dotted(given)
        text.replace(data.former, data.made)
    else:
        name, line = source.free("sampler", "train_sampler"), source.statement(call)
        text.before(line.lineno, f"{text.indent(line)}{name} = {data.made}")
    kept = [source.code(each) for each in call.args[:1]]
    kept += [source.code(each) for each in call.keywords if each.arg == "dataset"]
    kept.append(f"batch_sampler={name}")
    kept += [source.code(k) for k in call.keywords if k.arg not in (*REPLACED, "dataset")]
    text.replace(call, f"{source.code(call.func)}({', '.join(kept)})")


def _import_line(source: Source) -> int:
    """Return the last line of the imports that the script begins with."""
    last = 0
    for number, each in enumerate(source.tree.body):
        is_text = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        if not isinstance(each, ast.Import | ast.ImportFrom) and not (number == 0 and is_text):
            break
        last = each.end_lineno or 0
    return last
