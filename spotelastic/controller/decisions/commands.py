"""Decides what commands from people (stop, restart, scale) cause (pure).

The leading controller answers each command once, after its effect is done. A command that asks for
what is so already succeeds. One that has expired is dropped: its sender was told that no answer
came. Each decision handles one command that changes something, so that the next sees the result.

Must never happen: somebody is told that a job has stopped which is only being moved, and goes on
elsewhere; or a job that somebody has stopped is moved by itself, and goes on. So a job that is
stopped for the one is not stopped for the other.
"""

from collections.abc import Iterator

from spotelastic.controller.model.observation import (
    Action,
    AskToEnd,
    Observation,
    PendingCommand,
    Replace,
    Reply,
    Rescale,
    Revive,
    Tell,
)
from spotelastic.model.counting import counted
from spotelastic.model.job import Ending, Job, Settings
from spotelastic.model.progress import Event
from spotelastic.model.protocol import refusal
from spotelastic.model.requests.command import Answer, Command

STOPPED = "stopped by command"
"""Why a job has ended that somebody has stopped. A stop that begins a move has another reason."""


def read(seen: Observation, now: float, lifetime: float) -> Iterator[Action]:
    for order in seen.orders:
        command = order.command
        if command is None or command.id in seen.answered or now - order.sent_at > lifetime:
            yield Reply(order, None)
            continue
        told, actions = _carry_out(seen, command, now)
        yield from actions
        yield _reply(order, command, now, told, bool(actions) or _holds(seen, command))
        if actions:
            return


def _reply(order: PendingCommand, command: Command, now: float, text: str, accepted: bool) -> Reply:
    return Reply(order, Answer(command.id, now, text, accepted), cause=command.id)


def _holds(seen: Observation, command: Command) -> bool:
    """Whether what the command asks for is so already."""
    match command.kind:
        case "stop":
            return not _other_stop(seen, command)
        case "restart":
            return seen.ending is None
        case "scale":
            return seen.wanted is not None and command.sizes(seen.wanted) == _sizes(seen.wanted)
    return False  # a word of a newer version's


def _carry_out(seen: Observation, command: Command, now: float) -> tuple[str, list[Action]]:
    """Return the answer to a command, and the actions that it causes."""
    if refused := refusal(command.protocol, "this command", "the cluster's controller"):
        return f"does not {command.kind}: {refused}", []
    match command.kind:
        case "stop":
            return _stop(seen, command, now)
        case "restart":
            return _restart(seen, command, now)
        case "scale":
            return _scale(seen, command, now)
    return (
        f"does not know “{command.kind}”: it runs an older version of spotelastic than the one "
        "that sent it, and nodes that start after another `spotelastic up` have the newer one",
        [],
    )


def _stop(seen: Observation, command: Command, now: float) -> tuple[str, list[Action]]:
    if refused := _other_stop(seen, command):
        return refused, []
    if seen.job is not None and seen.ended:
        return f"has {seen.job.state} already", []
    if seen.ending is not None:
        return "is being ended already", []
    why = f": {command.reason}" if command.reason else ""
    event = Event(now, "stop", f"the job will stop once its last step is committed{why}")
    ends = AskToEnd(Ending("stopped", now, command.reason or STOPPED), cause=command.id)
    return "stops once its last step is committed", [ends, Tell(event, (ends,), cause=command.id)]


def _other_stop(seen: Observation, command: Command) -> str:
    """Return why a stop is refused: the job is being stopped, or was, for another purpose."""
    if seen.job is not None and seen.ended:
        reason = seen.job.reason if seen.job.state == "stopped" else ""
    else:
        is_stop = seen.ending is not None and seen.ending.state == "stopped"
        reason = seen.ending.reason if seen.ending is not None and is_stop else ""
    if not reason or reason.startswith(command.reason or STOPPED):
        return ""
    if command.reason:
        return "was stopped by command, and is not moved"
    return (
        "is only stopped to be moved, and continues in the other region: stop it there, or undo "
        "the move with `spotelastic move --back`"
    )


def _restart(seen: Observation, command: Command, now: float) -> tuple[str, list[Action]]:
    """Restarts the job. Nodes left over from before run nothing any more, and are replaced."""
    if seen.job is None or not seen.ended:
        if seen.ending is not None:
            return "is being ended: try again once it has", []
        return "has not ended, and continues", []
    if seen.wanted is None:
        return "has no description any more", []
    state = f"restarted after it had {seen.job.state}"
    revives = Revive(Job("pending", now, state), seen.wanted, cause=command.id)
    begins = f"step {seen.committed}" if seen.committed else "the beginning: it has no checkpoint"
    return f"is restarted from {begins}", [
        revives,
        *(Replace(each, "its job was restarted", cause=command.id) for each in seen.staying),
        Tell(Event(now, "restart", f"the job is {state}"), (revives,), cause=command.id),
    ]


def _scale(seen: Observation, command: Command, now: float) -> tuple[str, list[Action]]:
    if seen.wanted is None:
        return "has no description any more", []
    low, high = command.sizes(seen.wanted)
    if not 1 <= low <= high:
        return f"cannot have {low} to {counted(high, 'node')}", []
    text = f"{low} to {high} nodes" if low < high else counted(low, "node")
    if _sizes(seen.wanted) == (low, high):
        return f"has {text} already", []
    event = Event(now, "scale", f"the job will have {text}", data={"min": low, "max": high})
    rescales = Rescale(command, cause=command.id)
    return f"will have {text}", [rescales, Tell(event, (rescales,), cause=command.id)]


def _sizes(wanted: Settings) -> tuple[int, int]:
    return wanted.min_nodes, wanted.max_nodes
