"""Makes a training script elastic: writes a Checkpointer around its loop, and says what it did.

A script of a form that is not understood raises `NotUnderstood`, with the line, and nothing of it
is changed.
"""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from spotelastic.client.adapt.data import WRAPPERS, ElasticData, elastic_data
from spotelastic.client.adapt.epoch_end import EpochEnd, epoch_end
from spotelastic.client.adapt.loops import TrainingLoop, training_loop
from spotelastic.client.adapt.resume import ResumedByHand, resumed_by_hand, saved_by_hand
from spotelastic.client.adapt.rewrite import rewritten
from spotelastic.client.adapt.source import Source, calls, found
from spotelastic.client.adapt.state import state_names
from spotelastic.errors import UsageError

TRAINERS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
}
"""Libraries whose Trainer has the loop, by the module that a script imports."""

COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor"),
    *("barrier", "gather_object", "broadcast_object_list"),
)
"""Functions that all ranks call together, by names that mean nothing else."""


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
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            self.name,
            self.name,
            "before",
            "adapted",
        )
        return "".join(lines)

    def as_told(self, backup: Path | None) -> dict[str, object]:
        """Return what programs are told. `backup`: where the former script is kept, if it was
        changed.
        """
        return {
            "script": self.name,
            "written": backup is not None,
            "backup": None if backup is None else str(backup),
            "diff": self.diff,
            "changes": self.changes,
            "notes": self.notes,
        }


def adapted(text: str, name: str, workers: int | None = None) -> Adapted:
    """Return the script with a Checkpointer around its training loop.

    `workers`: how many workers the batch size was meant for. Raises `UsageError`.
    """
    source = Source(text, name)
    _check_form(source)
    loop = training_loop(source)
    state = state_names(source, loop)
    data = elastic_data(source, loop, workers)
    resume = resumed_by_hand(source, loop)
    end = epoch_end(source, loop, state)
    after = rewritten(source, loop, state, data, resume, end)
    try:
        ast.parse(after)
    except SyntaxError as error:
        raise source.not_understood(loop.loop, f"the change would not be Python: {error}") from None
    changes = tuple(_changes(source, loop, state, data, resume))
    return Adapted(name, text, after, changes, tuple(_notes(source, loop, data, end)))


def read(path: Path) -> str:
    """Return the text of a script. Raises `UsageError`."""
    try:
        return path.read_bytes().decode()  # with the ends of lines that it has
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {path}: it is not UTF-8") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def write(made: Adapted, path: Path) -> Path:
    """Write the changed script, and return where the former one is kept. Raises `UsageError`."""
    backup = path.with_name(f"{path.name}.orig")
    try:
        with backup.open("xb") as file:
            file.write(made.before.encode())
        path.write_bytes(made.after.encode())
    except FileExistsError:
        raise UsageError(
            f"{backup} is there already: remove it, or move it away; nothing was changed"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
    return backup


def _check_form(source: Source) -> None:
    if calls(source.module, "Checkpointer"):
        raise UsageError(f"{source.name} has a Checkpointer already; nothing was changed")
    imported = {name for name, _ in _imports(source)}
    for module, library in TRAINERS.items():
        if module in imported:
            raise UsageError(
                f"{source.name} uses {library}, whose Trainer has the loop: see "
                "docs/how-to/hugging-face-and-lightning.md; nothing was changed"
            )
    if "transformers" in imported and calls(source.module, "Trainer"):
        raise UsageError(
            f"{source.name} uses the Trainer of Hugging Face, which has the loop: see "
            "docs/how-to/hugging-face-and-lightning.md; nothing was changed"
        )


def _imports(source: Source) -> Iterator[tuple[str, cst.CSTNode]]:
    """Yield the packages that the script imports."""
    for each in found(source.module, cst.Import):
        yield from ((source.code(alias.name).partition(".")[0], each) for alias in each.names)
    for statement in found(source.module, cst.ImportFrom):
        if statement.module is not None:
            yield source.code(statement.module).partition(".")[0], statement


def _changes(
    source: Source,
    loop: TrainingLoop,
    state: tuple[str, ...],
    data: ElasticData | None,
    resume: ResumedByHand | None,
) -> Iterator[str]:
    saved = state if data is None else (*state, data.sampler)
    yield f"line {source.line(loop.outermost)}: a Checkpointer saves {', '.join(saved)}"
    yield f"line {source.line(loop.loop)}: each turn of the loop is a step"
    if data is not None:
        yield (
            f"line {source.line(data.call)}: {data.sampler} deals out the data, so that each "
            "sample comes once in an epoch, with any number of workers"
        )
    if resume is not None:
        lines = ", ".join(str(source.line(each)) for each in resume.loading)
        yield f"line {lines}: what loaded a checkpoint by hand is gone"


def _notes(
    source: Source, loop: TrainingLoop, data: ElasticData | None, end: EpochEnd
) -> Iterator[str]:
    if end.lost is not None:
        yield (
            f"line {source.line(end.lost)}: {source.code(end.lost)} is left out once if the job "
            "goes on from exactly the end of an epoch: make it within the last step"
        )
    if lines := saved_by_hand(source, loop):
        listed = ", ".join(map(str, lines))
        yield f"line {listed}: what is saved by hand is no longer needed to go on; it stays"
    within = set(map(id, found(loop.region, cst.Call)))
    meeting = [call for call in calls(source.module, *COLLECTIVES) if id(call) not in within]
    if loop.epochs is not None and meeting:
        yield (
            f"line {source.line(meeting[0])}: {source.code(meeting[0].func)}() is a collective: "
            "between epochs, a node that has just come takes no part in it "
            "(docs/how-to/in-place.md)"
        )
    if data is None and not loop.over.is_range:
        yield (
            f"line {source.line(loop.loop)}: the loader stays as it is, and begins anew when the "
            "job goes on in mid-epoch (docs/how-to/data.md)"
        )
    if calls(source.module, "fully_shard", "FullyShardedDataParallel", "FSDP"):
        yield (
            "the model is sharded: new processes go on when nodes change, unless build= makes it "
            "(docs/how-to/in-place.md)"
        )
    elif not calls(source.module, *WRAPPERS, "prepare"):
        yield (
            "nothing averages gradients over workers: for more than one, wrap the model in "
            "DistributedDataParallel"
        )
