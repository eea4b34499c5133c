"""Parses the variables, secrets and readable folders that `up` is given for the script.

Pure, except that it reads the file of variables.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dotenv import dotenv_values
from dotenv.parser import Binding, parse_stream

from spotelastic.aws.artifacts.build_secrets import NETRC
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


def build_secrets(
    names: Sequence[str],
    given: Mapping[str, str],
    hidden: Mapping[str, str],
    environ: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (variables, build secrets): what the script keeps of `given`, and what the build has.

    A value comes from `given` or `hidden`, the job's variables and secrets, else from `environ`.
    That of NETRC is the content of the file. Raises `UsageError`.
    """
    found = {}
    for name in names:
        here = {**environ, **hidden, **given}
        value = here.get(_checked("--build-secret", name), "")
        if name == NETRC:
            value = _netrc(Path(value or "~/.netrc").expanduser())
        if not value:
            raise UsageError(
                f"--build-secret {name}: there is no such variable here: export it first"
            )
        found[name] = value
    return {name: value for name, value in given.items() if name not in found}, found


def _netrc(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--build-secret {NETRC}: {file} cannot be read: {why}") from None


def read(file: Path) -> dict[str, str]:
    """Read a file of variables in the form that python-dotenv reads.

    Lines are NAME=VALUE, also after `export`. Quotes, comments, several lines in quotes and
    ${NAME} are understood. Raises `UsageError` for a line that means nothing.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--env-file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--env-file {file} cannot be read: {error}; save it as UTF-8") from None
    for line in parse_stream(io.StringIO(text)):
        if line.error or (line.key is not None and not _is_assignment(line)):
            raise UsageError(f"--env-file {file}, line {_number(line)}: expected NAME=VALUE")
    found = dotenv_values(stream=io.StringIO(text))
    return {name: value for name, value in found.items() if value is not None}


def _is_assignment(line: Binding) -> bool:
    return line.value is not None and _NAME.fullmatch(line.key or "") is not None


def _number(line: Binding) -> int:
    """Return the number of the line; what a binding begins with may be blank lines."""
    text = line.original.string
    return line.original.line + text[: len(text) - len(text.lstrip())].count("\n")


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
