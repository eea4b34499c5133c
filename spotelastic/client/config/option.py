"""Describes a field of `JobConfig`.

That is its flag, key and variable, the values that it takes, and when it takes effect.

`option` declares a field, `config_fields` lists those of a class. The flags of `up`, the reading of
`spotelastic.toml`, its JSON schema, the reference page and the list of what an `up` changes are all
made from that list.
"""

import dataclasses
import math
import operator
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from spotelastic.client.config.panels import PANELS
from spotelastic.errors import UsageError

if TYPE_CHECKING:
    from spotelastic.model.job import JobSpec

T = TypeVar("T")
ON, OFF = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")
"""Words that a variable may set a switch by."""


class Effect(Enum):
    """When a changed value takes effect on a cluster that is up already."""

    CLUSTER = "fixed for a cluster"
    UP = "changed by `up`"
    SCALE = "changed by `up` and `scale`"
    COMMAND = "for one command"


CLUSTER, UP, SCALE, COMMAND = Effect


class ValueKind(Enum):
    """What a field takes."""

    SWITCH = "true or false"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TEXT = "a text"
    PATH = "a path"
    LIST = "a list of texts"


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One field of `JobConfig`."""

    name: str
    kind: ValueKind
    default: Any
    takes_table: bool
    """Whether a table of names and values may be given in place of NAME=VALUE texts."""
    takes_number: bool
    """Whether the text may also be given as a whole number."""
    help: str
    effect: Effect
    panel: str
    """Heading of the panel in `up --help`."""
    metavar: str | None = None
    """Name of the value in the help; None: its type."""
    argument: bool = False
    """Whether it is an argument of `up`, not a flag."""
    off: str = ""
    """The flag that switches it off, without dashes; empty: none."""
    short: str = ""
    shown_default: str | None = None
    """Words for the default, if the value says nothing."""
    least: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    """Regular expression of the texts that it takes, for an ElasticJob; empty: any."""
    commas: bool = False
    """Whether the flag takes the list as one word with commas. Otherwise it is repeated."""
    in_file: bool = True
    """Whether `spotelastic.toml` may hold it."""
    stored: "Callable[[JobSpec], object] | None" = None
    """Returns the value that a cluster's job has; an `up` that changes it names the field."""
    shows_values: bool = True
    """Whether `up` also names the old and the new value."""
    hidden: bool = False
    """Whether its value may be secret: no message shows it."""

    @property
    def key(self) -> str:
        """The key in `spotelastic.toml`, which is the flag without dashes."""
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        """The flag as messages name it; an argument's own name."""
        return self.key if self.argument else f"--{self.key}"

    def shown(self, text: str) -> str:
        """Return a value's text as a message may show it."""
        return "…" if self.hidden else text

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"SPOTELASTIC_{self.name.upper()}"

    def read(self, value: Any) -> Any:
        """Return the value as `JobConfig` holds it. Raises `ValueError` that says what is wrong."""
        if value is None and (self.default is None or self.kind is ValueKind.LIST):
            return self.default
        found = _READERS[self.kind](self, value)
        if self.least is not None and found < self.least:
            raise ValueError(f"needs to be at least {self.least:g}")
        if self.choices and found not in self.choices:
            raise ValueError(f"expected {' or '.join(self.choices)}")
        return found

    def read_entry(self, value: Any) -> Any:
        """Return the value of a key of `spotelastic.toml`.

        The file has types of its own: 3 is no text, and "yes" is neither true nor false. Raises
        `ValueError` that says what is wrong.
        """
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        match self.kind:
            case ValueKind.SWITCH if not isinstance(value, bool):
                raise ValueError("needs true or false")
            case ValueKind.WHOLE | ValueKind.NUMBER if isinstance(value, str):
                raise ValueError(f"needs {self.kind.value}, without quotes")
            case ValueKind.TEXT | ValueKind.PATH if is_number and not self.takes_number:
                raise ValueError("needs a text, in quotes")
        return self.read(value)

    def read_variable(self, text: str) -> Any:
        """Return the value of a variable, in which commas separate a list's values.

        The script's arguments are split as a shell does. Raises `ValueError`.
        """
        is_repeated = self.kind is ValueKind.LIST and not self.argument
        return self.read(text.split(",") if is_repeated else text)


def option(
    default: T,
    help: str,
    *,
    effect: Effect | None = None,
    stored: "Callable[[JobSpec], object] | None" = None,
    hidden: bool = False,
    **more: Any,
) -> T:
    """Declare a field of `JobConfig`. `ConfigField` describes the parameters.

    Unless an `effect` is named, an `up` changes what is `stored`, and the rest is fixed for a
    cluster. The panel is that of the class, unless another one is named.
    """
    effect = effect or (CLUSTER if stored is None else UP)
    told = {"help": help, "effect": effect, "stored": stored, "hidden": hidden, **more}
    return dataclasses.field(default=default, metadata=told, repr=not hidden)


def config_fields(config: type) -> tuple[ConfigField, ...]:
    """Return the fields of `JobConfig`, or of a class that extends it, panel by panel."""
    return _fields(config)


@cache
def _fields(config: Any) -> tuple[ConfigField, ...]:
    hints = get_type_hints(config)
    fields = []
    for each in dataclasses.fields(config):
        takes = _accepted(hints[each.name], each.default)
        *_, owner = (base for base in config.__mro__ if hasattr(base, each.name))
        fields.append(ConfigField(each.name, *takes, **{"panel": owner.PANEL, **each.metadata}))
    return tuple(sorted(fields, key=lambda field: PANELS.index(field.panel)))


def _accepted(hint: Any, default: Any) -> tuple[ValueKind, Any, bool, bool]:
    """Return what a field of this type takes: the kind, the default, tables, whole numbers."""
    members = {get_origin(each) or each for each in (hint, *get_args(hint))}
    if Sequence in members:
        return ValueKind.LIST, default, Mapping in members, False
    for type_, kind in _KINDS.items():
        if type_ in members:
            return kind, default, False, int in members and kind is ValueKind.TEXT
    raise TypeError(f"no field of JobConfig can have the type {hint}")


_KINDS = {
    bool: ValueKind.SWITCH,
    Path: ValueKind.PATH,
    str: ValueKind.TEXT,
    float: ValueKind.NUMBER,
    int: ValueKind.WHOLE,
}
"""The first of these types in a field's annotation decides its kind."""


# -- reading one value -----------------------------------------------------------------------------


def _switch(_: ConfigField, value: Any) -> bool:
    word = str(value).strip().lower()
    if isinstance(value, bool | int | str) and word in (*ON, *OFF):
        return word in ON
    raise ValueError("needs true or false")


def _whole(_: ConfigField, value: Any) -> int:
    is_whole = isinstance(value, str) or (isinstance(value, float) and value.is_integer())
    try:
        if isinstance(value, bool):
            raise TypeError
        return int(value) if is_whole else operator.index(value)
    except (TypeError, ValueError):
        raise ValueError("needs a whole number") from None


def _number(_: ConfigField, value: Any) -> float:
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise ValueError("needs a number")
    return found


def _text(_: ConfigField, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | os.PathLike):
        raise ValueError("needs a text")
    return str(value)


def _path(field: ConfigField, value: Any) -> Path:
    return Path(_text(field, value))


def _list(field: ConfigField, value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping) and field.takes_table:
        return tuple(f"{name}={_entry(each)}" for name, each in value.items())
    if isinstance(value, str):
        value = _words(field, value)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise ValueError("needs a list of texts")
    found = [_text(field, each) for each in value]
    if not field.commas:
        return tuple(found)
    return tuple(dict.fromkeys(each.strip() for each in found if each.strip()))


def _entry(value: Any) -> str:
    """Return the text of a table's value."""
    if not isinstance(value, str | int | float):
        raise ValueError("needs a text for each name")
    return str(value)


def _words(field: ConfigField, text: str) -> list[str]:
    """Return the texts that one text stands for."""
    if field.argument:
        try:
            return shlex.split(text)
        except ValueError as error:
            raise ValueError(re.sub("^N", "n", str(error))) from None
    if not field.commas:
        return [text]
    if not text.replace(",", "").strip():
        raise ValueError("name at least one")
    return text.split(",")


_READERS: Mapping[ValueKind, Callable[[ConfigField, Any], Any]] = {
    ValueKind.SWITCH: _switch,
    ValueKind.WHOLE: _whole,
    ValueKind.NUMBER: _number,
    ValueKind.TEXT: _text,
    ValueKind.PATH: _path,
    ValueKind.LIST: _list,
}


def read_fields(config: object) -> None:
    """Replace each field of a new config by its value as it was read. Raises `UsageError`."""
    for field in config_fields(type(config)):
        given = getattr(config, field.name)
        try:
            object.__setattr__(config, field.name, field.read(given))
        except ValueError as error:
            raise UsageError(f"{field.flag} {field.shown(said(given))}: {error}") from None


def said(value: Any) -> str:
    """Return a value as a command line would name it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
