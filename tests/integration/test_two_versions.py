"""Two installations of spotelastic, one of which speaks another protocol: real nodes and etcd."""

import re
import shutil
import uuid
from pathlib import Path

import pytest
import spotelastic_checkpoints
from spotelastic_checkpoints.protocol_version import PROTOCOL, ProtocolVersion
from support.processes.run_launcher import SCRIPT, running

import spotelastic
from spotelastic.store.etcd_server.process import EtcdMember

NEXT = ProtocolVersion(PROTOCOL.major + 1, 0)
LATER = ProtocolVersion(PROTOCOL.major, PROTOCOL.minor + 1)
NUMBER = re.compile(r"^PROTOCOL = ProtocolVersion\(.*\)$", re.MULTILINE)


def installed(folder: Path, protocol: ProtocolVersion) -> dict[str, str]:
    """This version, but for the number; what leads a process to it."""
    for package in (spotelastic, spotelastic_checkpoints):
        found = Path(str(package.__file__)).parent
        shutil.copytree(found, folder / found.name, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "spotelastic_checkpoints" / "protocol_version.py"
    text, count = NUMBER.subn(f"PROTOCOL = ProtocolVersion{tuple(protocol)}", file.read_text())
    assert count == 1
    file.write_text(text)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.soak
def test_a_node_of_another_version_joins_or_is_refused_in_one_line(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    unlike, later = installed(tmp_path / "unlike", NEXT), installed(tmp_path / "later", LATER)
    with running(etcd_member.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1:2") as run:
        run.add("a", str(SCRIPT), "100000")
        run.trains("a", beyond=5)
        node = run.add("b", str(SCRIPT), "100000", env=unlike)
        assert node.wait() == 2
        (line,) = node.output.strip().splitlines()[-1:]
        assert f"node b does not match node a of this run: protocol {NEXT} here" in line
        assert f"{PROTOCOL} there: install the same version of spotelastic on both" in line
        assert "Traceback" not in node.output
        assert run.trains("a").number == 1, "the run has not noticed"
        run.add("c", str(SCRIPT), "100000", env=later)
        run.trains("a", "c", beyond=5)


@pytest.mark.soak
def test_a_script_whose_python_has_another_version_fails_in_a_line(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    other = installed(tmp_path / "other", NEXT)
    script = tmp_path / "train.py"
    head = f"""import sys
sys.path.insert(0, {other["PYTHONPATH"]!r})
for name in [name for name in sys.modules if name.startswith("spotelastic")]:
    del sys.modules[name]
"""
    script.write_text(head + SCRIPT.read_text())
    with running(etcd_member.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1") as run:
        node = run.add("a", str(script), "50", args=("--max-restarts", "0"))
        assert node.wait() != 0
        assert (
            f"this node's agent speaks protocol {PROTOCOL}, and the script's Python" in node.output
        )
        assert f"speaks {NEXT}: install the same version of spotelastic on both" in node.output
