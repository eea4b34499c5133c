"""Secrets that only the build of packages has, such as those of a private package index.

They are variables as pip and uv read them (`PIP_INDEX_URL`, `UV_INDEX_NAME_PASSWORD`, ...). `NETRC`
holds a file, which both tools read for the names and passwords of hosts.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spotelastic.redaction import redactor, without_known_formats

NETRC = "NETRC"
"""The variable that names a netrc file. What is stored is the file's content."""
_PASSWORD = re.compile(r"\bpassword\s+(\S+)")


@contextmanager
def build_variables(values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the variables of the build. A netrc file is there as long as the context."""
    with tempfile.TemporaryDirectory(prefix="spotelastic-build-") as folder:
        found = dict(values)
        if content := found.get(NETRC):
            file = Path(folder, "netrc")
            file.touch(0o600)
            file.write_text(content)
            found[NETRC] = str(file)
        yield found


def hiding(values: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces, in a text, the values and the passwords that are in them."""
    hide = redactor(part for value in values.values() for part in _parts(value))

    def hidden(text: str) -> str:
        return without_known_formats(hide(text))

    return hidden


def _parts(value: str) -> Iterator[str]:
    yield value
    for word in value.split():
        if "://" in word and (password := _password_of(word)):
            yield from (password, unquote(password))
    yield from _PASSWORD.findall(value)


def _password_of(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""
