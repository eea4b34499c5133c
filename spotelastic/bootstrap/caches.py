"""Puts the caches of common libraries on the node's scratch disk (pure).

Their defaults are on the root disk, which is smaller, and slower than disks of the instance.
"""

from collections.abc import Mapping
from pathlib import Path

SCRATCH = "SPOTELASTIC_SCRATCH"
FOLDERS = {
    "HF_HOME": "huggingface",
    "TORCH_HOME": "torch",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
"""Folders of the scratch disk by the variable that names them."""


def cache_folders(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a node with this environment. What it names already stays.

    None on the local cloud: its nodes share the disk, and the caches, of their machine.
    """
    scratch = environ.get(SCRATCH)
    if not scratch or "SPOTELASTIC_VOLUMES" in environ:
        return {}
    return {
        name: str(Path(scratch, "cache", folder))
        for name, folder in FOLDERS.items()
        if name not in environ
    }
