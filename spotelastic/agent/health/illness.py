"""Decides what a node does about the health of its GPUs (pure).

Parts of `decide.py`. Must never happen:

- a node joins before its check is over, or after a fault was found;
- a sick node goes on training, or holds up the others: its workers are killed first, which needs no
  etcd, and it leaves when its time is over even if they cannot be ended;
- a failure that a sick GPU has caused is charged to the script: a node says that it is ready only
  when its GPUs have been examined (`round_duties.get_ready`), and a sick one never does.
"""

from spotelastic.agent import actions as do
from spotelastic.agent import shutdown
from spotelastic.agent.state.values import NodeState
from spotelastic.model.counting import counted
from spotelastic.rendezvous.view import RunState

TELL_WITHIN = 10.0
"""Seconds in which etcd is to be told of a fault that keeps a node from joining."""
TOLD = "fault"
"""Topic of that report."""
EFA = "efa"
"""Topic, and kind of the event, of the network devices."""


def check(local: NodeState) -> do.Steps:
    if local.health.unchecked and not local.health.checking:
        yield do.CheckGpus()


def fall_ill(local: NodeState, seen: RunState, now: float) -> do.Steps:
    """Leaves the run, or does not join it."""
    workers, health = local.workers, local.health
    if workers is not None and workers.alive and not workers.killed:
        yield do.KillWorkers()
    tell_by = health.ill_since + TELL_WITHIN
    if not local.membership.registered and TOLD not in local.reports.said and now < tell_by:
        yield do.TellFault()
        yield do.Wake(tell_by)
        return
    yield from shutdown.leave(local, seen, now)


def tell(local: NodeState) -> do.Steps:
    """Report what the kernel told of the GPUs and change nothing, and what network there is."""
    node = local.node
    if node is None or not local.membership.registered:
        return
    health, said = local.health, local.reports.said
    for fault in health.warnings:
        topic = f"gpu {fault.cause}"
        if topic not in said:
            data = {"gpu": fault.gpu, "xid": fault.xid, "cause": fault.cause}
            yield do.TellDevices(topic, f"{node.id}: {fault.line}", data=data)
    if health.efa and EFA not in said:
        line = f"{node.id} has {counted(health.efa, 'EFA device')}"
        if health.nccl_plugin:
            line += ", and NCCL's plugin for them"
        else:
            line += (
                ", but not NCCL's plugin for them (libnccl-net.so): NCCL uses sockets, which are "
                "slower; install aws-ofi-nccl in the image"
            )
        data = {"devices": health.efa, "plugin": health.nccl_plugin}
        yield do.TellDevices(EFA, line, warns=not health.nccl_plugin, data=data)
