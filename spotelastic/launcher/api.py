"""Implements `spotelastic.launch`, which calls a Python function in elastic workers.

It does so in the way in which `spotelastic run` runs a script.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from spotelastic.agent.workers import function
from spotelastic.errors import EnvironmentFailure, JobFailed, UsageError, WorkerFailed
from spotelastic.launcher.flags import GROUPS, parse
from spotelastic.launcher.run import logging_of, serve
from spotelastic.launcher.run_folders import own_folders
from spotelastic.model.job import Job

T = TypeVar("T")

_FLAGS = {flag.dest for flags in GROUPS.values() for flag in flags}
_FOR_SCRIPTS = {"module", "no_python", "run_path"}


def launch(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **flags: Any,
) -> dict[int, T]:
    """Call `fn(*args, **kwargs)` in every worker of this node; return the results by global rank.

    `flags` are the flags of `spotelastic run`, with underscores: `nnodes="2:4"`,
    `nproc_per_node=2`, `rdzv_endpoint="a:2379"`, `gang=True`, `preload=["my.model"]`. The variables
    `PET_NAME` and `SPOTELASTIC_NAME` count too. The call returns when the job has ended on all
    nodes. Function, arguments and results are pickled. The result of a function that ends by
    `sys.exit(0)` is None.

    Raises `WorkerFailed` with the first failure if the restart budget is used up. Raises
    `JobFailed` if the job failed otherwise or a result cannot be sent back. Raises `UsageError` and
    `EnvironmentFailure` where the command would end with exit code 2. Raises `KeyboardInterrupt` or
    `SystemExit` if a signal asked this node to leave.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("spotelastic.launch must be called on the main thread")
    if "SPOTELASTIC_ROUND" in os.environ:
        raise UsageError(
            "spotelastic.launch was called inside a worker, which imports the main module: "
            'call it below `if __name__ == "__main__":`'
        )
    options = parse([*_words(flags), getattr(fn, "__qualname__", "function")])
    with logging_of(options), own_folders() as folders:
        calls = folders.state / "calls"
        calls.mkdir(mode=0o700)
        file = function.pack(calls, fn, args, kwargs or {})
        ended = serve(options, "function", (str(file),), folders)
        if ended.code == 0:
            return function.results(calls, ended.finished)
    raise _error(ended.code, ended.job)


def _words(flags: Mapping[str, Any]) -> list[str]:
    """Return the flags as they would stand on the command line."""
    words = []
    for name, value in flags.items():
        if name not in _FLAGS or name in _FOR_SCRIPTS:
            raise UsageError(f"spotelastic.launch: {name} is not a flag of `spotelastic run`")
        if value is None or value is False:
            continue
        words.append(f"--{name}" if value is True else f"--{name}={_text(value)}")
    return words


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ",".join(str(each).replace(",", ",,") for each in value)
    return str(value)


def _error(code: int, job: Job | None) -> BaseException:
    if code > 128:
        return KeyboardInterrupt() if code == 128 + signal.SIGINT else SystemExit(code)
    if job is None or code != 1:
        return EnvironmentFailure("this node had to leave the job: its messages say why")
    first = job.failure
    if first is None:
        return JobFailed(f"the job has {job.state}: {job.reason}")
    return WorkerFailed(
        job.reason, first.node, first.rank, first.message, first.traceback, first.log
    )
