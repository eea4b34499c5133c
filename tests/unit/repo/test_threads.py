"""A thread that is needed does not die unnoticed: each thread of the product is minded by somebody.

What ends a thread by an error is told by `threading.excepthook` alone. So each thread has a name,
and stands here with what happens when it ends: whoever minds it, or why nobody has to.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import spotelastic_checkpoints

import spotelastic
from spotelastic.agent.agent_loop import HELPERS as AGENT
from spotelastic.controller.loop.controller_loop import HELPERS as CONTROLLER
from spotelastic.local.__main__ import HELPERS as LOCAL_CLOUD

DAEMON = ("peers",)
"""What `spotelastic_checkpoints.daemon.process` minds."""
MINDED = {
    "agenda": (LOCAL_CLOUD,),
    "claim": (AGENT,),
    "daemon-events": (AGENT,),
    "etcd": (AGENT,),
    "flush": (AGENT,),
    "gpu-health": (AGENT,),
    "hypervisor": (LOCAL_CLOUD,),
    "aws": (LOCAL_CLOUD,),
    "imds": (LOCAL_CLOUD,),
    "inbox": (CONTROLLER,),
    "kernel-log": (AGENT,),
    "notices": (AGENT,),
    "peers": (DAEMON,),
    "publisher": (CONTROLLER,),
    "session": (AGENT, CONTROLLER),
    "snapshots": (CONTROLLER,),
    "starter": (LOCAL_CLOUD,),
    "tenancy": (AGENT,),
    "users": (LOCAL_CLOUD,),
    "watch ": (AGENT, CONTROLLER),
    "worker-control": (AGENT,),
    "worker-output": (AGENT,),
    "zygote": (AGENT,),
}
"""By name, who ends in a defined way when the thread does."""
HARMLESS = {
    "abort": "its only work is one abort, for which its caller waits",
    "certificate": "its loop takes every error, and looks again",
    "environment": "its loop takes every error, and renews again",
    "gpu-check": "it checks one device in a process of its own, whose answer is missed without it",
    "keeper": "its loop takes every error, and starts the keeper again",
    "hand back": "its only work is to hand messages back, each of which may fail",
    "lease": "whatever ends it, but its pod's end, ends the pod at once",
    "proof": "its only work is to end its process, whose reading of a file has an end anyway",
    "log": "it writes one line after the other, and goes on when none can be written",
    "log-shipper": "its loop takes every error; what could not be sent is told",
    "notifier": "its loop takes every error; a controller goes on without telling people",
    "peer": "it serves one connection, which ends with it",
    "preparing": "it only repeats what was told already",
    "prices": "it only looks up earlier what is looked up again when it is needed",
    "replicas": "its loop takes every error, tells it, and asks again",
    "receiver": "its loop takes every error, which costs one notification",
    "resolve": "its caller waits for it with a deadline, and goes on without an answer",
    "metrics": "its loop takes every error; a node goes on without what it serves",
    "look": "its only work is one look of `doctor`, which is told as missing an answer without it",
    "nccl-errors": "its loop takes every error, and looks again",
    "restarted": "its only work is to tell of one restart; what goes wrong is logged",
    "rounds": "its end closes the connection: the agent ends a worker that cannot be told to rest",
    "seat": "its loop takes every error, and looks again",
    "slots": "its only work is to be early: a slot that is not mapped is mapped when it is granted",
    "snapshot": "what ends it is raised where the training thread settles the save",
    "storage": "what ends it is raised where the call's answer is awaited",
    "storage-probe": "its caller waits for it with a deadline; every error becomes a problem",
    "user": "it serves one command, whose connection ends with it",
}


def threads() -> Iterator[tuple[str, str]]:
    """Where the product makes threads, and the name of each; "" without a literal one."""
    for package in (spotelastic, spotelastic_checkpoints):
        root = Path(package.__path__[0])
        for file in sorted(root.rglob("*.py")):
            text = file.read_text()
            if "Thread(" not in text:  # each process that runs tests looks at all files
                continue
            tree = ast.parse(text)
            constants = _constants(tree)
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Thread"):
                    named = [key.value for key in call.keywords if key.arg == "name"]
                    said = named[0] if named else None
                    if isinstance(said, ast.JoinedStr):
                        said = said.values[0]
                    if isinstance(said, ast.Name):
                        said = constants.get(said.id)
                    name = str(said.value) if isinstance(said, ast.Constant) else ""
                    yield f"{file.relative_to(root.parent)}:{call.lineno}", name


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """What names of the module stand for."""
    given = (each for each in tree.body if isinstance(each, ast.Assign))
    return {ast.unparse(each.targets[0]): each.value for each in given}


FOUND = tuple(threads())


@pytest.mark.parametrize(("place", "name"), FOUND)
def test_every_thread_is_minded_or_may_end(place: str, name: str) -> None:
    assert name, "a thread without a name can be minded by nobody"
    assert name in MINDED or name in HARMLESS, "say who minds it, and see to that"


def test_whoever_minds_a_thread_knows_its_name() -> None:
    for name, minders in MINDED.items():
        assert all(name.startswith(known) for known in minders), name
    known = {name.strip() for name in MINDED}
    for helpers in (AGENT, CONTROLLER, LOCAL_CLOUD, DAEMON):
        assert set(helpers) <= known, "it minds a thread that there is not"


def test_no_name_outlives_its_thread() -> None:
    assert {name for _, name in FOUND} == MINDED.keys() | HARMLESS.keys()
