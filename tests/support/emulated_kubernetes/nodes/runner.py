"""Starts, signals and ends pods by commands to the hypervisor, on the cluster's event loop.

It is the hypervisor of the emulated EC2 instances (`instances/hypervisor.py`): one pod is one
instance of it, with all its descendants.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spotelastic_checkpoints import isolated

from spotelastic.local.base.processes import CLOUD, INSTANCE
from spotelastic.local.base.remains import Remains

CLOSE_WITHIN = 30.0
"""Seconds that the hypervisor has to end all pods."""


class PodRunner:
    """The processes of all pods, each known by its pod's uid.

    `on_exit` is called with a uid and an exit code when a pod's first process has ended. When the
    hypervisor itself ends, all pods end with it, and `on_lost` is called.
    """

    def __init__(
        self, remains: Remains, on_exit: Callable[[str, int], None], on_lost: Callable[[], None]
    ) -> None:
        self._remains = remains
        self._on_exit, self._on_lost = on_exit, on_lost
        self._ended: dict[str, asyncio.Future[None]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the hypervisor, and wait until it answers."""
        self._process = await asyncio.create_subprocess_exec(
            *isolated.command("spotelastic.local.instances.hypervisor", self._remains.dumps()),
            env=isolated.environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._listening = asyncio.create_task(self._listen())
        await self.end("none")

    def folder(self, uid: str) -> Path:
        """Return the folder of a pod's files. It is short: sockets lie below it."""
        return Path(self._remains.folder, "pods", uid[:8])

    def memory(self, uid: str) -> Path:
        """Return the folder of a pod's volumes in memory; it goes with the pod."""
        return self._remains.shm / uid

    def log(self, uid: str) -> Path:
        """Return the file with what the pod has written."""
        return self.folder(uid) / "log"

    def marks(self, uid: str) -> dict[str, str]:
        """Return the variables by which a pod's processes are found."""
        return {INSTANCE: uid, CLOUD: self._remains.cloud}

    def begin(self, uid: str, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start a pod's first process."""
        self._order(
            do="boot",
            instance=uid,
            argv=list(argv),
            env={**environ, **self.marks(uid)},
            cwd=str(self.folder(uid)),
            console=str(self.log(uid)),
            shm=str(self.memory(uid)),
            is_unit=False,
            tells=True,
        )

    def signal(self, uid: str, number: int) -> None:
        """Send a signal to a pod's first process."""
        self._order(do="signal", instance=uid, number=int(number))

    def end(self, uid: str, *, keep_memory: bool = False) -> asyncio.Future[None]:
        """Kill all processes of a pod at once; the future is done when none is left.

        Its volumes in memory go too, unless another container of the pod follows.
        """
        if uid not in self._ended:
            self._ended[uid] = asyncio.get_running_loop().create_future()
            memory = self.folder(uid) / "nothing" if keep_memory else self.memory(uid)
            self._order(do="end", instance=uid, shm=str(memory))
        return self._ended[uid]

    async def close(self) -> None:
        """End all pods, and remove what they have on the machine."""
        self._on_lost = _ignore
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_WITHIN)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._listening is not None:
            await self._listening

    def _order(self, **order: Any) -> None:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the hypervisor was not started")
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async for line in self._process.stdout:
            match json.loads(line):
                case {"exited": [uid, code]}:
                    self._on_exit(uid, code)
                case {"ended": uid}:
                    self._ended.pop(uid).set_result(None)
        self._on_lost()


def _ignore() -> None:
    """After `close` the hypervisor's end is expected."""
