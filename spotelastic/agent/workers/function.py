"""Carries a Python function to workers, which call it instead of a script, and its results back.

Everything is pickled into files of one folder, which this user alone may read. What a pickle names
in `__main__` is found by loading the program's main module under another name, as multiprocessing's
spawn does; code below `if __name__ == "__main__":` therefore does not run again. Where there is no
such file (a notebook, a program from standard input), or a function has no name that could be
looked up, it travels by value, if cloudpickle is installed.
"""

import contextlib
import importlib
import inspect
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from spotelastic.errors import JobFailed, UsageError

_NAME, _PATH = "init_main_from_name", "init_main_from_path"
_SURROUNDINGS = ("sys_path", "sys_argv", _NAME, _PATH)
_CALL = "call"
_BY_VALUE = "cloudpickle"
_LEFT = "ended before the function had returned (os._exit, or another program in its place)"


@dataclass(frozen=True, slots=True)
class _Result:
    round: str
    rank: int
    value: bytes = b""
    problem: str = ""


def pack(
    folder: Path, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Path:
    """Write the call into `folder`, and return the file.

    Raises `UsageError` for what cannot be sent.
    """
    named = getattr(function, "func", function)  # of a partial
    name = getattr(named, "__qualname__", repr(function))
    if not callable(function):
        raise UsageError(f"{name} is not a function: give one, and its arguments as a tuple")
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{name} is a coroutine: give a function that runs it by asyncio.run")
    surroundings = _surroundings()
    wanted = (function, tuple(args), dict(kwargs))
    try:
        call = pickle.dumps(wanted)
    except Exception as error:  # whatever an object of the user's raises
        call = _by_value(wanted, name, error)
    if b"__main__" in call and not {_NAME, _PATH} & surroundings.keys():
        call = _by_value(wanted, name, None)
    return _write(folder / _CALL, pickle.dumps((surroundings, name, call)))


def _surroundings() -> dict[str, Any]:
    """Return what a worker needs to find modules, and the main module if it can be loaded again."""
    told = spawn.get_preparation_data("worker")
    found = {key: told[key] for key in _SURROUNDINGS if key in told}
    name = found.get(_NAME, "")
    if name == "__main__" or name.endswith(".__main__"):  # a package's, which spawn does not load
        del found[_NAME]
    if _PATH in found and not Path(found[_PATH]).is_file():  # <stdin>
        del found[_PATH]
    return found


def _by_value(wanted: object, name: str, error: Exception | None) -> bytes:
    """Pickles by value.

    Raises `UsageError` if cloudpickle is not installed, or cannot do it either.
    """
    why = (
        f"{error}; define it at the top level of a module, and pass it what can be pickled"
        if error is not None
        else "there is no file that they could load it from; define it in a module"
    )
    try:
        dumps = importlib.import_module(_BY_VALUE).dumps
    except ImportError:
        told = f"{name} cannot be sent to workers: {why}"
        raise UsageError(f"{told} (or install {_BY_VALUE}, which sends it by value)") from error
    try:
        return bytes(dumps(wanted))
    except Exception as problem:
        raise UsageError(
            f"{name} cannot be sent to workers: {problem}; pass it what can be pickled"
        ) from problem


def call(file: Path) -> None:
    """Run in a worker: loads the function, calls it, and stores its result beside the call."""
    surroundings, name, packed = pickle.loads(file.read_bytes())
    place = os.environ["SPOTELASTIC_ROUND"], int(os.environ["RANK"])
    into = file.with_name(f"result-{os.environ['SPOTELASTIC_LOCAL_RANK']}")
    _write(into, pickle.dumps(_Result(*place, problem=_LEFT)))
    spawn.prepare(surroundings)
    try:
        function, args, kwargs = pickle.loads(packed)
    except AttributeError as error:
        raise UsageError(
            f"a worker that loads the program again does not find all of {name}: {error}; "
            'define it above `if __name__ == "__main__":`'
        ) from error
    try:
        value = function(*args, **kwargs)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
        value = None
    _write(into, pickle.dumps(result(place, value, name)))


def result(place: tuple[str, int], value: object, name: str) -> _Result:
    """Store the result.

    One that cannot be pickled is reported when the job ends: training again would not help.
    """
    try:
        return _Result(*place, _dumps(value))
    except Exception as error:
        problem = f"{name} returned a {type(value).__name__} that cannot be sent back: {error}"
    return _Result(*place, problem=problem)


def _dumps(value: object) -> bytes:
    """Pickles by name, or by value if names do not do.

    Raises whatever an object of the user's raises.
    """
    try:
        return pickle.dumps(value)
    except Exception:
        with contextlib.suppress(ImportError):
            return bytes(importlib.import_module(_BY_VALUE).dumps(value))
        raise


def results(folder: Path, round_: str) -> dict[int, Any]:
    """Return the results of this node's workers in the round, by global rank.

    Raises `JobFailed` if a worker left no result, or one that cannot be read.
    """
    found: list[_Result] = [pickle.loads(file.read_bytes()) for file in folder.glob("result-*")]
    own = sorted((each for each in found if each.round == round_), key=lambda each: each.rank)
    for each in own:
        if each.problem:
            raise JobFailed(f"the job has succeeded, but rank {each.rank}: {each.problem}")
    return {each.rank: _value(each) for each in own}


def _value(result: _Result) -> Any:
    try:
        return pickle.loads(result.value)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise JobFailed(
            f"the job has succeeded, but the result of rank {result.rank} cannot be read: {told}"
        ) from error


def _write(file: Path, data: bytes) -> Path:
    """Write the file completely or not at all."""
    new = file.with_name(f".{file.name}")
    new.touch(mode=0o600)
    new.write_bytes(data)
    return new.rename(file)
