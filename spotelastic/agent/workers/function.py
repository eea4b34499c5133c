"""A function that workers run instead of a script: its way there, and the way of its results back.

Everything is pickled into files of one folder, which this user alone may read. What a pickle names
in `__main__` is found by loading the program's main module under another name, as multiprocessing's
spawn does; code below `if __name__ == "__main__":` therefore does not run again.
"""

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from spotelastic.errors import UsageError

_MAIN = ("init_main_from_name", "init_main_from_path")
_SURROUNDINGS = ("sys_path", "sys_argv", *_MAIN)
_CALL = "call"


@dataclass(frozen=True, slots=True)
class _Result:
    round: str
    rank: int
    value: bytes


def pack(
    folder: Path, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Path:
    """Write the call into `folder`; the file. Raises `UsageError` for what cannot be sent."""
    name = getattr(function, "__qualname__", repr(function))
    told = spawn.get_preparation_data("worker")
    surroundings = {key: told[key] for key in _SURROUNDINGS if key in told}
    if function.__module__ == "__main__" and not any(key in surroundings for key in _MAIN):
        raise UsageError(
            f"{name} cannot be sent to workers: there is no file that they could load it from; "
            "define it in a module"
        )
    try:
        call = pickle.dumps((function, tuple(args), dict(kwargs)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{name} cannot be sent to workers: {error}; define it at the top level of a module, "
            "and pass it what can be pickled"
        ) from error
    return _write(folder / _CALL, pickle.dumps((surroundings, call)))


def call(file: Path) -> None:
    """In a worker: load the function, call it, and leave its result beside the call."""
    surroundings, packed = pickle.loads(file.read_bytes())
    spawn.prepare(surroundings)
    function, args, kwargs = pickle.loads(packed)
    value = function(*args, **kwargs)
    environ = os.environ
    result = _Result(environ["SPOTELASTIC_ROUND"], int(environ["RANK"]), pickle.dumps(value))
    name = f"result-{environ['SPOTELASTIC_LOCAL_RANK']}"
    _write(file.with_name(name), pickle.dumps(result))


def results(folder: Path) -> dict[int, Any]:
    """What this node's workers returned, by global rank; of a job of several rounds, the last."""
    files = sorted(folder.glob("result-*"), key=lambda file: file.stat().st_mtime_ns)
    found: list[_Result] = [pickle.loads(file.read_bytes()) for file in files]
    last = [result for result in found if result.round == found[-1].round]
    return {r.rank: pickle.loads(r.value) for r in sorted(last, key=lambda result: result.rank)}


def _write(file: Path, data: bytes) -> Path:
    """Whole or not at all."""
    new = file.with_name(f".{file.name}")
    new.touch(mode=0o600)
    new.write_bytes(data)
    return new.rename(file)
