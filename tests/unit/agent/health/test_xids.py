"""Messages of NVIDIA's driver, as kernels print them, and what they mean for a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.agent.health.xids import MEANINGS, read

PREFIX = "4,1234,98765432,-;"
"""Of a message in /dev/kmsg."""


@pytest.mark.parametrize(
    ("line", "verdict", "gpu", "words"),
    [
        (
            "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus.",
            "sick", "0000:1b:00", "Xid 79, the GPU has fallen off the bus",
        ),
        ("NVRM: Xid (0000:03:00): 48, An uncorrectable double bit error", "sick", "0000:03:00",
         "Xid 48, a memory error of two bits"),
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping",
         "suspect", "0000:10:1c",
         "Xid 63, a part of its memory is to be replaced at the next reset"),
        ("NVRM: Xid (PCI:0000:CB:00): 31, pid=17, name=python3, MMU Fault", "script",
         "0000:cb:00", "Xid 31, the program has used a wrong address"),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: SM", "sick", "0000:3b:00",
         "Xid 94, a memory error that has ended the program which used it"),
        ("NVRM: Xid (PCI:0000:3b:00): 119, pid=2, Timeout after 6s of waiting for RPC", "sick",
         "0000:3b:00", "Xid 119, its firmware (GSP) does not answer"),
        ("NVRM: Xid (PCI:0000:3b:00): 999, something new", None, "0000:3b:00",
         "Xid 999, something new"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
         "(Node Reboot Required)", "sick", "0000:01:00",
         "Xid 154, the driver asks for: Node Reboot Required"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 "
         "(Drain P2P)", "suspect", "0000:01:00", "Xid 154, the driver asks for: Drain P2P"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
         "sick", "0000:c1:00.0",
         "SXid 20034, an error of the switch between GPUs, Link 30 LTSSM Fault Up"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 46 egress", None,
         "0000:c1:00.0", "SXid 12028, an error of the switch between GPUs, Link 46 egress"),
    ],
)  # fmt: skip
def test_a_message_is_read(line: str, verdict: str | None, gpu: str, words: str) -> None:
    report = read(PREFIX + line)
    assert report is not None
    assert (report.verdict, report.fault.gpu, report.fault.what) == (verdict, gpu, words)
    assert report.fault.xid > 0
    assert report == read(line), "as in the log of another system"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX Open Kernel Module",
        "NVRM: GPU at PCI:0000:1b:00: GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae",
        "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset "
        "Required) to 0x0 (None)",
        "usb 1-1: new device",
    ],
)
def test_other_messages_say_nothing(line: str) -> None:
    assert read(line) is None


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    read(text)
    read(f"NVRM: Xid (PCI:0000:01:00): {text}")


def test_what_a_script_does_to_itself_makes_no_node_sick() -> None:
    script = {13, 31, 32, 43, 45, 68, 69}
    sick = {46, 48, 62, 64, 74, 79, 94, 95, 119, 120, 140}
    assert {xid for xid, (verdict, _) in MEANINGS.items() if verdict == "script"} >= script
    assert {xid for xid, (verdict, _) in MEANINGS.items() if verdict == "sick"} >= sick
