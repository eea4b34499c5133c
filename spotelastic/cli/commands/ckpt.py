"""Defines `spotelastic ckpt`: list, inspect, verify, export, import, pin and remove checkpoints.

A checkpoint is named by the URL of its run (the value of --storage) or by its cluster. `@STEP`
after it picks a step, `@EPOCH/STEP` a step of an epoch that was abandoned.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotelastic import validation
from spotelastic.cli.commands.ckpt_target import opened, storage
from spotelastic.cli.options.common import AsJson
from spotelastic.clock import wall
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.counting import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from spotelastic_checkpoints.catalog.catalog import (
        Catalog,
        Checkpoint,
        Progress,
        StepEntry,
        Tensor,
    )

app = typer.Typer(
    help="List, verify, export, import, pin and remove checkpoints.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Url = Annotated[
    str,
    typer.Argument(
        metavar="URL[@STEP]",
        help="The run's storage, or the name of its cluster. Without @STEP: the latest.",
    ),
]
LS_EXAMPLES = """[bold]Examples[/]

spotelastic ckpt ls runs/train

spotelastic ckpt ls train

spotelastic ckpt ls s3://bucket/job/checkpoints --json
"""
INSPECT_EXAMPLES = """[bold]Example[/]

spotelastic ckpt inspect s3://bucket/job/checkpoints@4000
"""
VERIFY_EXAMPLES = """[bold]Example[/]

spotelastic ckpt verify runs/train && echo all bytes are as they were saved
"""
EXPORT_EXAMPLES = """[bold]Examples[/]

spotelastic ckpt export runs/train@4000 model.pt --part model

spotelastic ckpt export s3://bucket/job/checkpoints folder/ --max-shard-size 2GB
"""
IMPORT_EXAMPLES = """[bold]Example[/]

spotelastic ckpt import pretrained.pt s3://bucket/job/checkpoints --part model
"""

PIN_EXAMPLES = """[bold]Example[/]

spotelastic ckpt pin s3://bucket/job/checkpoints@4000
"""


@app.command(epilog=LS_EXAMPLES)
def ls(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The run's storage, or the name of its cluster.")
    ],
    json: AsJson = False,
) -> None:
    """List the stored checkpoints."""
    from spotelastic.cli.render import tables

    with opened(url) as named:
        tables.show(named.catalog.entries(), _entries_table, as_json=json)


@app.command(epilog=INSPECT_EXAMPLES)
def inspect(url: Url, json: AsJson = False) -> None:
    """List a checkpoint's tensors: shape, dtype, shards, bytes."""
    from spotelastic.cli.render import tables

    with opened(url) as named:
        tables.show(named.checkpoint.tensors(), _tensors_table, as_json=json)


@app.command(epilog=VERIFY_EXAMPLES)
def verify(url: Url) -> None:
    """Read every byte of a checkpoint and compare its checksums.

    `ls` shows when a checkpoint was last verified.
    """
    from spotelastic.model.counting import size

    with opened(url) as named:
        checkpoint = named.checkpoint
        with progress("verifying", checkpoint.item_bytes) as done:
            complaints = named.catalog.verify(checkpoint, done)
        _note(named.catalog, checkpoint, complaints)
        for complaint in complaints:
            typer.echo(complaint, err=True)
        if complaints:
            raise EnvironmentFailure(f"{named}: {counted(len(complaints), 'item')} damaged")
        typer.echo(f"{named}: {size(checkpoint.nbytes)} verified")


@app.command(epilog=EXPORT_EXAMPLES)
def export(
    url: Url,
    to: Annotated[
        Path,
        typer.Argument(help="FILE.pt for torch.load; a folder for safetensors (Hugging Face)."),
    ],
    part: Annotated[
        str | None,
        typer.Option(
            help="Export only this key of the state.", show_default="all, or model for safetensors"
        ),
    ] = None,
    max_shard_size: Annotated[
        str, typer.Option(help="Largest size of a safetensors file.")
    ] = "5GB",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a checkpoint as one torch.save file, or as safetensors files."""
    most = int(validation.size("--max-shard-size", max_shard_size))
    as_torch = to.suffix in (".pt", ".pth", ".bin", ".ckpt")
    with _writing(to):
        _refuse(to, as_torch, force)
    with opened(url) as named:
        checkpoint = named.checkpoint
        if as_torch:
            from spotelastic.training.dcp import convert

            # The tensors are assembled in a second file beside the target: twice the bytes.
            part = part or ""
            total = convert.tensor_bytes(checkpoint, part)
            with _writing(to, 2 * total), progress("exporting", total) as done:
                count = convert.to_torch(named.catalog, checkpoint, to, done, part)
        else:
            count = _export_safetensors(named.catalog, checkpoint, to, part, most)
        typer.echo(f"{named}: {counted(count, 'tensor')} in {to}")


@app.command("import", epilog=IMPORT_EXAMPLES)
def import_(
    file: Annotated[Path, typer.Argument(help="A state dict written by torch.save.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Storage for the new run.")],
    part: Annotated[str, typer.Option(help='Key of the state to put it under, e.g. "model".')] = "",
    step: Annotated[int, typer.Option(min=0, help="Step number of the new checkpoint.")] = 0,
) -> None:
    """Turn a torch.save file into a checkpoint that a run can resume from."""
    from spotelastic.training.dcp import convert

    with storage(url) as there:
        made = convert.from_torch(file, there, step, partial(progress, "importing"), part)
    typer.echo(f"{url}@{made.commit.step}: {counted(len(made.tensors()), 'tensor')} and values")


@app.command(epilog=PIN_EXAMPLES)
def pin(url: Url) -> None:
    """Keep a checkpoint until it is unpinned."""
    from spotelastic_checkpoints.commit import retention

    with opened(url) as named:
        retention.pin(named.commits, named.checkpoint.commit)
        typer.echo(f"{named} is pinned")


@app.command()
def unpin(url: Url) -> None:
    """Let the retention rules delete a checkpoint again."""
    from spotelastic_checkpoints.commit import retention

    with opened(url) as named:
        retention.unpin(named.commits, named.checkpoint.commit)
        typer.echo(f"{named} is no longer pinned")


@app.command()
def rm(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL@STEP", help="The checkpoint; neither the latest nor a pinned one."
        ),
    ],
) -> None:
    """Delete a checkpoint."""
    from spotelastic_checkpoints.commit import retention

    with opened(url) as named:
        if named.step is None:
            raise UsageError(f"{url}: name a step, as in {url}@4000")
        retention.remove(named.commits, named.commit)
        typer.echo(f"{named} is removed")


def _note(catalog: "Catalog", checkpoint: "Checkpoint", complaints: list[str]) -> None:
    """Record the verification's result for `ckpt ls`.

    A storage may be readable but not writable.
    """
    from spotelastic_checkpoints.errors import CheckpointsError

    try:
        catalog.note(checkpoint, complaints, datetime.fromtimestamp(wall(), UTC))
    except CheckpointsError as error:
        typer.echo(f"warning: the result could not be recorded for `ckpt ls`: {error}", err=True)


# -- what the commands are made of ----------------------------------------------------------------


def _refuse(to: Path, as_torch: bool, force: bool) -> None:
    """Refuse a target that `export` must not write to."""
    if as_torch and to.exists() and not force:
        raise UsageError(f"{to} already exists: name another file, or add --force")
    if not as_torch and to.is_dir() and any(to.glob("*.safetensors")) and not force:
        raise UsageError(
            f"{to} already holds safetensors files: name another folder, or add --force"
        )
    if not as_torch and (to.is_file() or to.suffix == ".safetensors"):
        raise UsageError(f"{to}: name a folder for safetensors, or FILE.pt for torch.load")


@contextmanager
def _writing(to: Path, nbytes: int = 0) -> Iterator[None]:
    """Report errors of the file system as one line. `nbytes` is the most that is written."""
    from spotelastic.model.counting import size

    try:
        yield
    except OSError as error:
        what = f"{to} cannot be written: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what += f", and it takes up to {size(nbytes)}: make room there, or"
        else:
            what += ":"
        raise EnvironmentFailure(f"{what} name another place") from error


def _export_safetensors(
    catalog: "Catalog", checkpoint: "Checkpoint", folder: Path, part: str | None, most: int
) -> int:
    from spotelastic_checkpoints.catalog import safetensors_export

    tensors = [t for t in checkpoint.tensors() if t.dtype != "value"]
    if part is None:
        part = "model" if any(t.name.startswith("model.") for t in tensors) else ""
    prefix = f"{part}." if part else ""
    chosen = {t.name.removeprefix(prefix): t for t in tensors if t.name.startswith(prefix)}
    if not chosen:
        raise UsageError(f"--part {part}: step {checkpoint.commit.step} has no such tensors")
    files = safetensors_export.plan(chosen, most)
    total = sum(t.nbytes for t in chosen.values())
    with _writing(folder, total), progress("exporting", total) as done:
        safetensors_export.export(catalog, checkpoint, files, folder, done)
    return len(chosen)


@contextmanager
def progress(what: str, total: int) -> Iterator["Progress"]:
    """Show a progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    shown = Progress(
        *columns, TransferSpeedColumn(), console=console, disable=not console.is_terminal
    )
    with shown:
        task = shown.add_task(what, total=total)
        yield lambda nbytes: shown.advance(task, nbytes)


def _entries_table(entries: "list[StepEntry]") -> "RenderableType":
    from rich.text import Text

    from spotelastic.cli.render.tables import table_of
    from spotelastic.web.view import rows
    from spotelastic.web.view.columns import CHECKPOINTS

    found = rows.checkpoints(entries, wall())
    if not found:
        return Text("no checkpoints")
    names = [column.name.lower() for column in CHECKPOINTS]
    table = table_of(*names, "", right=("step", "fencing epoch", "size", "ranks"))
    for row in found:
        cells = (getattr(row, column.key) for column in CHECKPOINTS)
        table.add_row(*cells, ", ".join(row.marks))
    return table


def _tensors_table(tensors: "list[Tensor]") -> "RenderableType":
    from spotelastic.cli.render.tables import table_of
    from spotelastic.model.counting import size

    table = table_of("name", "dtype", "shape", "shards", "size", right=("shards", "size"))
    for tensor in tensors:
        shape = "x".join(map(str, tensor.shape)) or ("-" if tensor.dtype == "value" else "scalar")
        table.add_row(tensor.name, tensor.dtype, shape, str(tensor.shards), size(tensor.nbytes))
    return table
