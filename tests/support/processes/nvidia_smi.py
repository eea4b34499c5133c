"""A program that stands in for nvidia-smi: it answers what a test writes down."""

import os
from pathlib import Path

from support.saving.whole_files import put

PROGRAM = """#!/bin/sh
# Fields that this driver does not know, one a line, are refused as nvidia-smi refuses them.
for field in $(cat {folder}/unknown); do
    case "$*" in *"$field"*)
        echo "Field \\"$field\\" is not a valid field to query."; exit 2;;
    esac
done
[ -e {folder}/hangs ] && exec sleep 600
case "$*" in *utilization*) exec cat {folder}/use;; esac
cat {folder}/answer
exit "$(cat {folder}/code)"
"""


class FakeSmi:
    """nvidia-smi in a folder of its own, and the variables with which it is found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(PROGRAM.format(folder=folder))
        program.chmod(0o755)
        self.environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        self.answers("0, 00000000:1B:00.0, 0, No, No", "1, 00000000:1C:00.0, 0, No, No")
        self.is_used()
        self.knows_no()

    def answers(self, *lines: str, code: int = 0) -> None:
        put(self.folder / "answer", "".join(f"{line}\n" for line in lines))
        put(self.folder / "code", str(code))

    def is_used(self, *lines: str) -> None:
        """What it answers when it is asked for use: index, address, percent, MiB used, MiB."""
        put(self.folder / "use", "".join(f"{line}\n" for line in lines))

    def knows_no(self, *fields: str) -> None:
        put(self.folder / "unknown", "\n".join(fields))

    def hangs(self) -> None:
        (self.folder / "hangs").touch()
