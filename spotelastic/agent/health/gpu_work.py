"""Makes each GPU of this machine work once, and compares the results with the CPU's.

The program that a node runs before it joins (`gpu_check.py` starts it). One line of JSON is printed
when torch is imported, and one for each GPU.

A product of two matrices of small whole numbers is exact whatever the GPU rounds to, and bytes that
go to the GPU and back are the same ones.
"""

import json
import sys
import threading
from collections.abc import Callable
from operator import matmul
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SIDE = 1024
LARGEST = 8
"""Entries are below this, so that sums stay far below what 32-bit floats hold exactly."""
COPIED = 16 << 20
"""Bytes that are copied."""
NOT_ITS_FAULT = ("out of memory", "busy or unavailable", "exclusive", "no kernel image")
"""In errors of a GPU that another program uses, or that is too new or too old for this torch."""


def main() -> int:
    """Check the devices that are named as arguments; without any, all that torch sees."""
    import torch

    names = sys.argv[1:] or [f"cuda:{n}" for n in range(torch.cuda.device_count())]
    why = "" if names else _why_none(torch)
    # Whether this torch was built for GPUs.
    cuda = bool(sys.argv[1:] or torch.version.cuda or getattr(torch.version, "hip", None))
    _tell({"devices": len(names), "cuda": cuda, "why": why})
    threads = [threading.Thread(target=_check, args=(name,), name="gpu-check") for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


def _why_none(torch: Any) -> str:
    """Return why torch sees no GPU, in its own words; empty: it does not say."""
    try:
        torch.cuda.init()
    except Exception as error:
        return (str(error).splitlines() or [""])[0]
    return ""


def _check(name: str) -> None:
    import torch

    told: dict[str, object] = {"device": name}
    try:
        device = torch.device(name)
        told["address"] = _address(device)
        told["wrong"] = work(device)
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        busy = any(words in str(error) for words in NOT_ITS_FAULT)
        told["busy" if busy else "wrong"] = lines[0]
    _tell(told)


def _address(device: "torch.device") -> str:
    """Return the GPU's PCI address as the kernel writes it; empty if torch does not tell."""
    import torch

    if device.type != "cuda":
        return ""
    properties: Any = torch.cuda.get_device_properties(device)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):
        return ""
    domain, bus, device_id = (int(getattr(properties, name)) for name in names)
    return f"{domain:04x}:{bus:02x}:{device_id:02x}"


def work(
    device: "torch.device",
    multiply: "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]" = matmul,
) -> str:
    """Return what the device did wrong; empty: nothing.

    `multiply`: how matrices are multiplied there.
    """
    import torch

    dice = torch.Generator().manual_seed(1)
    one, other = (
        torch.randint(LARGEST, (SIDE, SIDE), generator=dice).to(torch.float32) for _ in range(2)
    )
    product = multiply(one.to(device), other.to(device)).cpu()
    if not torch.equal(product, one @ other):
        wrong = int((product != one @ other).sum())
        return f"a product of matrices is wrong in {wrong} of {SIDE * SIDE} places"
    sent = torch.randint(256, (COPIED,), generator=dice, dtype=torch.uint8)
    back = sent.to(device, copy=True).cpu()
    if not torch.equal(sent, back):
        return f"{int((sent != back).sum())} of {COPIED} bytes differ after a copy there and back"
    return ""


def _tell(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)
