"""Tells in one line which round a node's workers take up (pure)."""

from spotelastic.model.counting import counted
from spotelastic.model.round import Member, Round


def describe_round(round_: Round, member: Member) -> str:
    source = {
        "fresh": "no saved step to go on from",
        "memory": f"from step {round_.resume.step} in memory",
        "store": f"from step {round_.resume.step} in the object store",
    }[round_.resume.kind]
    if round_.in_place == "keep":
        source = f"on from step {round_.resume.step} in place"
    workers = counted(round_.world_size, "worker")
    if any(other.workers != member.workers for other in round_.members):
        workers = f"{workers} ({member.workers} of them here)"
    return (
        f"round {round_.number} ({round_.reason}): node {member.slot + 1} of "
        f"{len(round_.members)}, {workers}, {source}"
    )
