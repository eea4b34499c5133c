"""Defines `files`: what the script of a job has kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotelastic.cli.commands.ckpt_target import storage
from spotelastic.cli.commands.found_cluster import found_cluster
from spotelastic.cli.options.common import AsJson, Region, Where
from spotelastic.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from spotelastic_checkpoints.storage.object_store import Storage

    from spotelastic.client.kept_files import ListedFile

EXAMPLES = """[bold]Examples[/]

spotelastic files

spotelastic files demo --json | jq -r .[].path

spotelastic files demo --fetch

spotelastic files demo out/best.pt --fetch --to results

spotelastic files runs/train
"""
LEFT = "these are the files that it has kept"


def files(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The cluster, or the storage of a run. May be omitted if exactly one cluster "
            "exists.",
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH", help="With --fetch: a kept file, or a folder of them. Default: all."
        ),
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Fetch them. A newer file that is there is left.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --fetch: folder to write to.", show_default="NAME-files"
        ),
    ] = None,
    where: Where = None,
    region: Region = None,
    json: AsJson = False,
) -> None:
    """List the files that the script has kept (--output), or fetch them."""
    from spotelastic.cli.commands.ckpt import progress
    from spotelastic.cli.render import tables
    from spotelastic.client import kept_files

    if not fetch and (path is not None or to is not None):
        raise UsageError("files: PATH and --to say what is fetched, and where to: add --fetch")
    with _storage_of(name, where, region) as (label, there):
        known = kept_files.listed(there)
        if not fetch:
            tables.show(known, _table, as_json=json)
            return
        with progress("fetching", sum(file.nbytes for file in known)) as done:
            fetched = kept_files.fetch(there, to or Path(f"{label}-files"), path, done)
    typer.echo(tables.to_json(fetched) if json else fetched.line)


@contextmanager
def _storage_of(
    name: str | None, where: bool | None, region: str | None
) -> Iterator[tuple[str, "Storage"]]:
    """Open the storage of a cluster, also of one that is gone, or the one that is named itself."""
    from spotelastic_checkpoints.storage.open import folder_of

    folder = None if name is None else folder_of(name)
    if name is not None and ("://" in name or (folder is not None and folder.is_dir())):
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{name}: no such folder")
        label, url = name.rstrip("/").rpartition("/")[2], name
    else:
        cluster = found_cluster(name, where, region, gone=True, left=LEFT)
        label, url = cluster.name, cluster.record.spec.storage
    with storage(url) as there:
        yield label, there


def _table(found: "list[ListedFile]") -> "RenderableType":
    from rich.text import Text

    from spotelastic.cli.render.tables import table_of
    from spotelastic.clock import wall
    from spotelastic.model.counting import size
    from spotelastic.web.view import words

    if not found:
        return Text("no files are kept: --output names the folders of the script that are")
    table = table_of("path", "size", "written", "node rank", right=("size", "written", "node rank"))
    for file in found:
        name = f"{file.path} -> {file.link}" if file.link else file.path
        table.add_row(name, size(file.nbytes), words.ago(file.written, wall()), str(file.rank))
    return table
