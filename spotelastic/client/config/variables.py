"""Parses the variables, secrets and readable folders that `up` is given for the script.

Pure, except that it reads the file of variables.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from spotelastic.errors import UsageError
from spotelastic.redaction import SHORTEST

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


def variables(
    pairs: Iterable[str],
    file: str | Path | None,
    secrets: Sequence[str],
    environ: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (variables, secrets) of the job.

    A `--env` pair wins over the file. A secret's value comes from the pairs or the file, else from
    `environ`. Raises `UsageError`.
    """
    known = {} if file is None else read(Path(file))
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:  # as in docker: the value that it has here
            if name not in environ:
                raise UsageError(f"--env {name}: there is no such variable here; give {name}=VALUE")
            value = environ[name]
        known[_checked("--env", name)] = value
    hidden = {}
    for name in secrets:
        value = known.pop(_checked("--secret", name), environ.get(name, ""))
        if not value:
            raise UsageError(f"--secret {name}: there is no such variable here: export it first")
        if len(value) < SHORTEST:
            raise UsageError(
                f"--secret {name}: its value is shorter than {SHORTEST} characters, too short to "
                "be kept out of logs; use --env if it is not a secret"
            )
        hidden[name] = value
    return known, hidden


def read(file: Path) -> dict[str, str]:
    """Read a file of NAME=VALUE lines.

    Blank lines, `#` comments, `export` and quotes are understood.
    """
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"--env-file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--env-file {file} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip().removeprefix("export ").lstrip()
        if not text or text.startswith("#"):
            continue
        name, sign, value = text.partition("=")
        if not sign or not _NAME.fullmatch(name.strip()):
            raise UsageError(f"--env-file {file}, line {number}: expected NAME=VALUE")
        found[name.strip()] = _unquoted(value.strip())
    return found


def folders(flag: str, urls: Sequence[str]) -> tuple[str, ...]:
    """Return `bucket/prefix` of each s3:// URL, "bucket/" for a whole bucket.

    Raises `UsageError`.
    """
    found = []
    for url in urls:
        match = _URL.fullmatch(url)
        if match is None:
            raise UsageError(f"--{flag} {url}: expected s3://BUCKET or s3://BUCKET/FOLDER")
        if "*" in url or "?" in url or "," in url:
            raise UsageError(f"--{flag} {url}: patterns are not supported, name a folder")
        found.append(f"{match[1]}/{match[2] or ''}")
    return tuple(sorted(set(found)))


def _checked(flag: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{flag} {name}: the name of a variable is letters, digits and _")
    return name


def _unquoted(value: str) -> str:
    for quote in ('"', "'"):
        if len(value) >= 2 and value[0] == quote == value[-1]:
            return value[1:-1]
    return value.partition(" #")[0].rstrip()
