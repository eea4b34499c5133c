"""Hooks of mkdocs: the search, the version, the generated tables, and links to files of the
repository.

- Decisions are for whoever changes spotelastic: the search leaves them out. Other pages are also
  found by the words of search_words.py.
- `<!-- insert: NAME -->` in a page becomes what `INSERTS[NAME]` makes of the code.
- A link to a file outside of docs/ works in the repository as it stands. On the site it leads to a
  copy of that file.
- Each page says which version it describes.
"""

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import command_reference
import configuration_reference
import errors_reference
import metrics_reference
import search_words
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from spotelastic.version import __version__

ROOT = Path(__file__).parents[2]
DECISIONS = "decisions/"
COPIES = "source"
"""Folder of the site with the files of the repository that pages link to."""
INSERTS: Mapping[str, Callable[[], str]] = {
    "commands": command_reference.page,
    "exit-codes": errors_reference.table,
    "metrics": metrics_reference.tables,
    "template": configuration_reference.template,
    "toml-keys": configuration_reference.keys,
}
_MARK = re.compile(r"^<!-- insert: (.*) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Writes the version below each page."""
    config.copyright = f"spotelastic {__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files of the repository that pages link to."""
    for page in list(files.documentation_pages()):
        for target in _LINK.findall(page.content_string):
            path = _outside(page.src_uri, target)
            name = path and f"{COPIES}/{path}"
            if path and name and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in what is generated, leads links to the copies, and tells the search of the page."""
    source = page.file.src_uri
    page.meta["search"] = {"exclude": source.startswith(DECISIONS)}
    page.meta["tags"] = list(search_words.WORDS.get(source, ()))

    def lead(match: re.Match[str]) -> str:
        path = _outside(source, match[1])
        return (
            posixpath.relpath(f"{COPIES}/{path}", posixpath.dirname(source)) if path else match[1]
        )

    return _LINK.sub(lead, filled(markdown))


def filled(markdown: str) -> str:
    """The page with the generated parts. An unknown name is an error: KeyError."""
    return _MARK.sub(lambda match: INSERTS[match[1]](), markdown)


def _outside(source: str, target: str) -> str | None:
    """Path in the repository of what a page links to; None where that is a page or no file."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), target))
    return path if not path.startswith(("docs/", "..")) and (ROOT / path).is_file() else None
