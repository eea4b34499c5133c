"""Runs commands as a user types them, each as a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.clusters.local_cloud import environment
from support.processes.warm_python import WarmPython

from spotelastic import client
from spotelastic.client.cluster import Cluster
from spotelastic.errors import SpotelasticError

PROGRAM = [sys.executable, "-m", "spotelastic"]


class Terminal:
    """Runs commands of one user, whose home is a folder of the test, on the cluster `demo`."""

    def __init__(
        self,
        folder: Path,
        program: list[str] = PROGRAM,
        warm: WarmPython | None = None,
        **variables: str,
    ) -> None:
        """`warm` runs the commands in place of `program`, where they do not go on."""
        self.folder = folder
        self.program = program
        self.warm = warm
        self.variables = {"SPOTELASTIC_HOME": str(folder / "home")} | variables

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        if self.warm is not None:
            words = ("-m", "spotelastic", *args)
            return self.warm.run(*words, folder=self.folder, environ=os.environ | self.variables)
        return subprocess.run(
            [*self.program, *args],
            cwd=self.folder,
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @contextmanager
    def goes_on(self, *args: str) -> Iterator["subprocess.Popen[str]"]:
        """A command that goes on beside others."""
        process = subprocess.Popen(
            [*self.program, *args],
            cwd=self.folder,
            env=os.environ | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with process:
                yield process
        finally:
            process.kill()

    def json(self, *args: str) -> Any:
        told = self(*args, "--json")
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    @property
    def cluster(self) -> Cluster:
        """As another program has it: to wait with commands takes a process for each look."""
        with environment(SPOTELASTIC_HOME=str(self.folder / "home")):
            return client.find("demo", local=True)

    def training(self) -> set[str]:
        nodes = self.cluster.status().nodes
        return {node.id for node in nodes if node.state == "training"}

    def printed(self, words: str) -> bool:
        """Whether rank 0 has printed a line that begins with these words."""
        return any(line.text.startswith(words) for line in self.cluster.logs(rank=0))

    def has_report(self) -> bool:
        with suppress(SpotelasticError):
            self.cluster.report()
            return True
        return False


def within(seconds: float, met: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
