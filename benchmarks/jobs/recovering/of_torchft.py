"""The job as one replica group of torchft, of one rank; with `--lighthouse FILE`, its lighthouse.

The lighthouse writes its address to the file. Its times, and the groups', are the lowest that the
other systems of the benchmark are held to as well, in place of torchft's longer defaults.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

LOST_AFTER = 2.0
"""Seconds after which a group that says nothing is lost: the lease of spotelastic's nodes."""
JOIN = 0.1
TICK = 0.05


def lighthouse(file: Path) -> None:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=1,
        join_timeout_ms=int(JOIN * 1000),
        quorum_tick_ms=int(TICK * 1000),
        heartbeat_timeout_ms=int(LOST_AFTER * 1000),
    )
    file.with_suffix(".new").write_text(server.address())
    file.with_suffix(".new").rename(file)
    while True:
        time.sleep(60)


def train() -> None:
    import work

    options = work.options()

    import torch.distributed as dist
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    model, inner = work.build(options.build, compiles=options.compile)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    patience = timedelta(seconds=LOST_AFTER)

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience),
        min_replica_size=1,
        timeout=patience,
        quorum_timeout=timedelta(seconds=30),
        connect_timeout=timedelta(seconds=10),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=os.environ["NODE"],
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        heartbeat_interval=timedelta(milliseconds=100),
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    while True:
        before = manager.current_step()
        work.train(wrapped, optimizer, options.pause)
        step, world = manager.current_step(), manager.num_participants()
        # An attempt in which a group was lost is refused: no optimizer has stepped.
        work.tell("step" if step > before else "refused", world, step, str(world))


if sys.argv[1] == "--lighthouse":
    lighthouse(Path(sys.argv[2]))
else:
    train()
