"""Smoke test of a release: installs the built packages into an empty environment, and uses them
there.

    python tests/support/repo/smoke.py dist --torch "torch==2.13.0" [--constraints constraints.txt]

`make smoke` runs this. The environment is `build/smoke/venv`. Commands run in a temporary folder,
so that nothing comes from the checkout. The first check that fails ends it, and shows the output.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
VENV = ROOT / "build" / "smoke" / "venv"
INSTALL_WITHIN, RUN_WITHIN = 1800, 300

SCRIPT = """\
import sys
import torch
import torch.distributed as dist
from spotelastic import Checkpointer

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
with Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    start = checkpoint.restore()
    print(f"begins at step {start}", flush=True)
    for step in range(start + 1, int(sys.argv[1]) + 1):
        loss = model(torch.ones(2, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpoint.step(step, loss=loss)
dist.destroy_process_group()
"""

EVERY_MODULE = """\
import importlib, pkgutil, spotelastic, spotelastic_checkpoints
for package in (spotelastic, spotelastic_checkpoints):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
"""

EVERY_FILE = """\
import spotelastic, spotelastic_checkpoints
from pathlib import Path
from spotelastic.aws.artifacts import wheel
from spotelastic.aws.artifacts.wheel import infra_names
from spotelastic.aws.base.infra_files import infra
for package in (spotelastic, spotelastic_checkpoints):
    assert (Path(package.__file__).parent / "py.typed").exists(), package
assert {"boundary.json", "cluster.yaml", "boot/install.sh", "boot/packages.txt"} <= {*infra_names()}
for name in infra_names():
    assert infra(name).is_relative_to(Path(spotelastic.__file__).parent), infra(name)
    assert infra(name).read_text(), name
assert len(wheel.build().data) > 100_000
from spotelastic.client.config import schema
assert schema.PUBLISHED.read_text() == schema.text()
"""


class Failed(Exception):
    """A check has failed."""


@dataclass(frozen=True)
class Environment:
    """An empty environment, and a folder outside of the checkout to run commands in."""

    folder: Path

    def pip(self, *args: str) -> None:
        _done(
            [str(VENV / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", *args],
            INSTALL_WITHIN,
            self.folder,
            dict(os.environ),
        )

    def run(self, *command: str, code: int = 0) -> str:
        """What the command prints. It must end with this exit code."""
        print("smoke:", shlex.join(command).splitlines()[0], flush=True)
        variables = {
            "PATH": f"{VENV / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
        }
        return _done(command, RUN_WITHIN, self.folder, variables, code)

    def expect(self, pattern: str, *command: str, code: int = 0) -> None:
        """The command's output has to contain this."""
        told = self.run(*command, code=code)
        if re.search(pattern, told) is None:
            raise Failed(f"{shlex.join(command)} does not print {pattern!r}:\n{told}")


def _done(
    command: Sequence[str], within: float, folder: Path, variables: dict[str, str], code: int = 0
) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=within,
        check=False,
    )
    if done.returncode != code:
        raise Failed(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def check_files(wheel: Path, source: Path) -> None:
    """What has to be in both archives is there, and what is nobody's business is not."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    with tarfile.open(source) as archive:
        kept = {name.partition("/")[2] for name in archive.getnames()}
    of_wheel = {f"{package}/py.typed" for package in ("spotelastic", "spotelastic_checkpoints")}
    infra = ("cluster.yaml", "boot/boot.sh", "boot/install.sh", "boot/spotelastic.service")
    of_wheel |= {f"spotelastic/_infra/{name}" for name in infra}
    of_source = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "infra/cluster.yaml",
        "spotelastic/py.typed",
    }
    for archive_file, lacking in (wheel, of_wheel - shipped), (source, of_source - kept):
        if lacking:
            raise Failed(f"{archive_file.name} lacks {', '.join(sorted(lacking))}")
    if strange := {name for name in shipped | kept if "__pycache__" in name or ".venv" in name}:
        raise Failed(f"what was built contains {', '.join(sorted(strange)[:5])}")


def check_without_extras(environment: Environment, version: str) -> None:
    """A bare installation serves the command line, and says what to install for the rest."""
    environment.expect(f"^spotelastic {re.escape(version)}$", "spotelastic", "--version")
    environment.expect(
        r"pip install 'spotelastic\[all\]'", "spotelastic", "up", "--local", "train.py", code=2
    )
    environment.expect(
        r"pip install 'spotelastic\[train\]'",
        "python",
        "-c",
        "from spotelastic import PerRank",
        code=1,
    )


def check_with_all(environment: Environment) -> None:
    """A newcomer's installation trains, resumes, and brings up a cluster on this machine."""
    environment.run("python", "-c", EVERY_MODULE)
    environment.run("python", "-c", EVERY_FILE)
    run = ("spotelastic", "run", "--standalone", "--nproc-per-node", "2", "train.py")
    environment.expect("begins at step 0", *run, "5")
    environment.expect("begins at step 5", *run, "8")
    environment.run("spotelastic", "ckpt", "verify", "runs/train")
    up = ("spotelastic", "up", "--local", "--min", "1", "--max", "1", "train.py", "5")
    environment.expect(r"succeeded\b.* 5 steps", *up)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="folder with one wheel and one source archive")
    parser.add_argument("--torch", required=True, help="what pip installs first")
    parser.add_argument("--constraints", type=Path, help="versions of everything else")
    args = parser.parse_args()
    (wheel,) = args.dist.resolve().glob("spotelastic-*.whl")
    (source,) = args.dist.resolve().glob("spotelastic-*.tar.gz")
    pins = ["-c", str(args.constraints.resolve())] if args.constraints else []
    with tempfile.TemporaryDirectory(prefix="spotelastic-smoke-") as folder:
        environment = Environment(Path(folder))
        (environment.folder / "train.py").write_text(SCRIPT)
        try:
            check_files(wheel, source)
            venv.create(VENV, clear=True, with_pip=True)
            environment.pip("install", *pins, str(wheel))
            check_without_extras(environment, wheel.name.split("-")[1])
            environment.pip("install", *shlex.split(args.torch))
            environment.pip("install", *pins, f"{wheel}[all]")
            check_with_all(environment)
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"smoke: {error}", file=sys.stderr)
            return 1
    print(f"smoke: {wheel.name} works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
