"""Runs programs as forks of a Python that has imported what they need.

Each is a process of its own, with its own arguments, folder, environment and streams, as if it had
been started afresh. What is saved is the start of Python and its imports: most of what a short
command takes, and three seconds of a core for each program that uses torch.
"""

import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import boto3
import pytest
from botocore.loaders import JSONFileLoader
from support.places import TESTS

COMMANDS = ("spotelastic.cli", "spotelastic.client", "spotelastic.aws")
"""What commands of `spotelastic` import, with all modules in it."""
TORCH = (
    *("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"),
    *("torch.distributed.tensor.parallel", "spotelastic.training.checkpointer"),
)


SERVICES = (
    *("autoscaling", "cloudformation", "ec2", "events", "iam", "logs", "pricing", "s3"),
    *("service-quotas", "sns", "sqs", "ssm", "sts"),
)


class WarmPython:
    """Runs one program after the other."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(
        self,
        *words: object,
        folder: Path = TESTS,
        environ: Mapping[str, str] | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS…` in the folder to its end: -m and a module, -c and code, or a script,
        with arguments. With `check` it must end well.
        """
        args = [*map(str, words)]
        with tempfile.TemporaryDirectory() as streams:
            out, err = (str(Path(streams, name)) for name in ("out", "err"))
            given = dict(os.environ if environ is None else environ)
            request = {"args": args, "folder": str(folder), "environ": given}
            assert self._process.stdin and self._process.stdout
            self._process.stdin.write(json.dumps(request | {"out": out, "err": err}) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            told, complaint = Path(out).read_text(), Path(err).read_text()
        assert not (check and code), f"{args} ended with {code}: {told}{complaint}"
        return subprocess.CompletedProcess(args, code, told, complaint)


@contextmanager
def warm_python(*imports: str) -> Iterator[WarmPython]:
    with subprocess.Popen(
        [sys.executable, "-m", "support.processes.warm_python", *imports],
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield WarmPython(process)
        assert process.stdin
        process.stdin.close()


@pytest.fixture(scope="session")
def warm_torch() -> Iterator[WarmPython]:
    """One that has imported torch."""
    with warm_python(*TORCH) as python:
        yield python


def _become(request: Mapping[str, Any]) -> NoReturn:
    """In the fork: run the program, and end as Python ends."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    new = os.O_WRONLY | os.O_CREAT
    streams = (os.devnull, os.O_RDONLY), (request["out"], new), (request["err"], new)
    for number, (path, flags) in enumerate(streams):
        os.dup2(os.open(path, flags, 0o600), number)
    _run(request["args"], request["folder"])
    sys.exit()


def _run(args: list[str], folder: str) -> None:
    if args[:2] == ["-W", "ignore"]:
        warnings.simplefilter("ignore")
        args = args[2:]
    if args[0] == "-m":
        sys.path[0], sys.argv = folder, args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    elif args[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *args[2:]]
        exec(compile(args[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0], sys.argv = str(Path(args[0]).parent.absolute()), [*args]
        runpy.run_path(args[0], run_name="__main__")


def _describe_services() -> None:
    """Read what boto3 knows of AWS's services once, of which each command would take a second."""
    load = JSONFileLoader().load_file
    JSONFileLoader.load_file = staticmethod(functools.cache(load))
    for service in SERVICES:
        boto3.client(service, region_name="us-east-1")


def _serve(imports: Sequence[str]) -> None:
    for name in imports:
        module = importlib.import_module(name)
        if name in COMMANDS:
            for each in pkgutil.walk_packages(module.__path__, f"{name}."):
                importlib.import_module(each.name)
    if "spotelastic.aws" in imports:
        _describe_services()
    gc.collect()
    gc.freeze()  # no fork looks for garbage among what was imported
    for line in sys.stdin:
        if not (child := os.fork()):
            _become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
