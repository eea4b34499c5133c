"""Makes a training script elastic: writes a Checkpointer around its loop, and says what it did.

A script of a form that is not understood raises `NotUnderstood`, with the line and with what to
write by hand, and nothing of it is changed.
"""

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotelastic.client.adapt.loops import TrainingLoop, training_loop
from spotelastic.client.adapt.names import Carried, carried
from spotelastic.client.adapt.objects import ElasticData, elastic_data, is_shared, state_names
from spotelastic.client.adapt.rewrite import rewritten
from spotelastic.client.adapt.source import NotUnderstood, Source, calls, dotted, nodes
from spotelastic.errors import UsageError

TRAINERS = re.compile(
    r"(lightning|pytorch_lightning|transformers|trl)\..*\b(\w*Trainer|LightningCLI)"
)
"""What has the loop, in libraries that have plug-ins."""
BY_HAND = """\
The lines to write by hand (docs/how-to/in-place.md):
    import spotelastic as se
    sampler = se.ElasticSampler(dataset, global_batch=...)  # of all workers together
    loader = DataLoader(dataset, batch_sampler=sampler)
    state = {{{state}, "sampler": sampler}}
    with se.Checkpointer(state) as checkpoint:
        batches = checkpoint.batches(loader)
        for epoch in checkpoint.epochs(epochs, len(loader)):
            for step in checkpoint.steps((epoch + 1) * len(loader)):
                with step:  # one step of the optimizer
                    batch = next(batches)
                    ...
                    step.loss = loss
            ...  # an evaluation, a scheduler's step"""


@dataclass(frozen=True, slots=True)
class Adapted:
    """A script with a Checkpointer."""

    name: str
    before: str
    after: str
    changes: tuple[str, ...]
    """What was changed, one line each."""
    notes: tuple[str, ...]
    """What the user should know or do, one line each."""

    @property
    def diff(self) -> str:
        """The change, as `diff -u` shows it."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        names = self.name, self.name, "before", "adapted"
        return "".join(difflib.unified_diff(before, after, *names))


def adapted(text: str, name: str, workers: int | None = None) -> Adapted:
    """Return the script with a Checkpointer around its training loop.

    `workers`: how many workers the batch size was meant for. Raises `UsageError`.
    """
    source = Source(text, name)
    try:
        _check_form(source)
        loop = training_loop(source)
        data = elastic_data(source, loop, workers)
        objects = state_names(source, loop)
        names = carried(source, loop, objects)
        after = rewritten(source, loop, objects, names, data)
        ast.parse(after)
    except NotUnderstood as error:
        raise NotUnderstood(f"{error}\n{_by_hand(source)}") from None
    except (SyntaxError, RecursionError) as error:
        raise UsageError(
            f"{name}: the change would not be Python ({error}): nothing was changed\n"
            f"{_by_hand(source)}"
        ) from None
    changes = tuple(_changes(loop, objects, names, data))
    return Adapted(name, text, after, changes, tuple(_notes(source)))


def read(path: Path) -> str:
    """Return the text of a script. Raises `UsageError`."""
    try:
        data = path.read_bytes()
        return data.decode(_encoding(data))  # with the ends of lines that it has
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        raise UsageError(f"cannot read {path}: it is no text: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _encoding(data: bytes) -> str:
    """Return the encoding that the script names, else UTF-8."""
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]


def write(made: Adapted, path: Path) -> Path:
    """Write the changed script, and return where the former one is kept. Raises `UsageError`."""
    backup = path.with_name(f"{path.name}.orig")
    try:
        data = path.read_bytes()
        with backup.open("xb") as file:
            file.write(data)
        path.write_bytes(made.after.encode(_encoding(data)))
    except FileExistsError:
        raise UsageError(
            f"{backup} is there already: remove it, or move it away; nothing was changed"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
    return backup


def _check_form(source: Source) -> None:
    if any(v.startswith("spotelastic") for v in source.imported.values()):
        raise UsageError(f"{source.name} uses spotelastic already; nothing was changed")
    for call in calls(source.tree, "spawn", "start_processes", "notebook_launcher"):
        raise source.no(
            call,
            f"{source.code(call.func)}() starts processes of its own: let `spotelastic run` start "
            "the workers, and adapt the script then",
        )
    for call in calls(source.tree, "Fabric"):
        raise source.no(
            call,
            "Lightning's Fabric wraps model, optimizer and loader for the ranks that there are: "
            "take the first two for the state, and leave the loader out of setup_dataloaders()",
        )
    for call in nodes(source.tree, ast.Call):
        if TRAINERS.fullmatch(source.full_name(call.func)):
            raise UsageError(
                f"{source.name}, line {call.lineno}: {source.code(call.func)}() has the loop: "
                "see docs/how-to/hugging-face-and-lightning.md; nothing was changed"
            )


def _by_hand(source: Source) -> str:
    """Return the lines to write by hand, with the names of this script as far as they are seen."""
    trained, stepped = calls(source.tree, "train", "parameters"), calls(source.tree, "step")
    held = [dotted(getattr(call.func, "value", None)) for call in [*trained[:1], *stepped]]
    found = [name for name in dict.fromkeys(held) if name.isidentifier()]
    found = found or ["model", "optimizer"]
    return BY_HAND.format(state=", ".join(f'"{name}": {name}' for name in found))


def _changes(
    loop: TrainingLoop, objects: Sequence[str], names: Carried, data: Sequence[ElasticData]
) -> Iterator[str]:
    saved = [*objects, *names.initial, *("sampler" for each in data if each.trains)]
    yield f"line {loop.outermost.lineno}: a Checkpointer saves {', '.join(saved)}"
    for mean in names.means:
        yield f"line {mean.lineno}: the loss is the mean over all workers, which have one each"
    for each in data:
        yield (
            f"line {each.call.lineno}: an ElasticSampler deals out the data, so that each sample "
            "comes once in an epoch, with any number of workers"
        )


def _notes(source: Source) -> Iterator[str]:
    if calls(source.tree, "fully_shard", "FullyShardedDataParallel", "FSDP"):
        yield (
            "the model is sharded: new processes go on when nodes change, unless build= makes it "
            "(docs/how-to/in-place.md)"
        )
    elif not is_shared(source):
        yield (
            "nothing averages gradients over workers, so this is for one worker: for more, have "
            "the script call torch.distributed.init_process_group() and wrap the model in "
            "DistributedDataParallel, and adapt that"
        )
