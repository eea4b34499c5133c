"""Builds tiny wheels that pip installs at once, without a network, from a folder."""

import base64
import hashlib
import zipfile
from pathlib import Path


def tiny(folder: Path, source: str = "def double(x): return 2 * x\n") -> Path:
    """A wheel of the module `tinymath`, with a command `tiny` that prints its interpreter."""
    info = "tinymath-1.0.dist-info"
    main = "def main():\n    import sys\n    print(sys.executable)\n"
    files = {
        "tinymath.py": source + main,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tinymath\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntiny = tinymath:main\n",
    }
    record = "".join(f"{name},{_digest(text)},{len(text)}\n" for name, text in files.items())
    path = folder / "tinymath-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(name, text)
    return path


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).decode().rstrip("=")
