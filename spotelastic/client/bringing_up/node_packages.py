"""Tells which packages a job's nodes have: spotelastic's own, those of the machine image, and those
that the folder's list names. Nothing is installed, and no index is asked.
"""

import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

from spotelastic.aws.artifacts import requirements
from spotelastic.aws.base.infra_files import infra
from spotelastic.client.config.validated_job import ValidatedJob

TRAINING = ("torch", "numpy", "setuptools", "spotelastic", "spotelastic-checkpoints")
"""Packages that every worker has, besides what they need."""
OF_GPU_IMAGE = ("torchvision", "torchaudio", "pillow")
"""Further ones of AWS's Deep Learning images, which types with GPUs run."""
DISTRIBUTIONS = dict(
    re.findall(
        r"(\w+)=(\S+)",
        """Bio=biopython Crypto=pycryptodome OpenSSL=pyopenssl PIL=pillow attr=attrs
        bs4=beautifulsoup4 cv2=opencv- fitz=pymupdf flash_attn=flash-attention git=gitpython
        mpl_toolkits=matplotlib open_clip=open-clip-torch osgeo=gdal pkg_resources=setuptools
        pylab=matplotlib ruamel=ruamel-yaml skimage=scikit-image sklearn=scikit-learn yaml=pyyaml
        zmq=pyzmq""",
    )
)
"""Modules that are named otherwise than the package that brings them. With a dash at its end a name
stands for all that begin so.
"""
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.]|-(?!\d))*")
_ITEM = re.compile(r"^\s*-\s+[\"']?(?:[\w.-]+::)?([A-Za-z0-9][\w.-]*)", re.MULTILINE)
"""A package in a conda environment, with or without its channel."""


@dataclass(frozen=True, slots=True)
class NodePackages:
    """The packages of a job's nodes."""

    names: frozenset[str]
    file: str = ""
    """The list that they were read from; "" for none."""
    complete: bool = True
    """Whether all is known that the listed packages need in turn."""
    here: bool = False
    """Whether nodes run this Python, with all that it has."""

    def bring(self, module: str) -> bool:
        """Return whether one of the packages brings a module, as far as that can be told."""
        if self.here and find_spec(module) is not None:
            return True
        name = normal(module)
        its = {name, f"py{name}", f"python-{name}", DISTRIBUTIONS.get(module, name)}
        its |= {normal(each) for each in _by_module().get(module, ())}
        begins = (f"{name}-", f"{name}2-", DISTRIBUTIONS.get(module, f"{name}-"))
        return not its.isdisjoint(self.names) or any(n.startswith(begins) for n in self.names)


def of(job: ValidatedJob, folder: Path) -> NodePackages:
    """Return the packages of the nodes of a job whose code is `folder`."""
    own = {*TRAINING, *_listed_by_pip(infra("boot/packages.txt").read_text())}
    if any(name[0] in "gp" for name in job.spec.instance_types or ("g",)):
        own |= {*OF_GPU_IMAGE}
    own, _ = _with_needs(own)
    wanted = job.spec.environment
    if wanted is None:
        return NodePackages(frozenset(own), here=job.config.local)
    needs, known = _with_needs({*_listed(folder / wanted.file, wanted.kind)})
    complete = wanted.kind == "uv" or (wanted.kind == "pip" and known)
    return NodePackages(frozenset(own | needs), wanted.file, complete, here=job.config.local)


def normal(name: str) -> str:
    """Return a name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _by_module() -> dict[str, list[str]]:
    return dict(packages_distributions())


def _with_needs(names: Collection[str]) -> tuple[set[str], bool]:
    """Return packages with all that they need, and whether each of them is installed here, which
    tells that.
    """
    found, left, known = set[str](), [*names], True
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            try:
                needs = [each for each in requires(name) or () if "extra ==" not in each]
                left += _listed_by_pip("\n".join(needs))
            except PackageNotFoundError:
                known = False
    return found, known


def _listed(path: Path, kind: str) -> Iterator[str]:
    """Yield the packages that a list names."""
    text = path.read_text()
    if kind == "uv":
        yield from (normal(each["name"]) for each in tomllib.loads(text).get("package", ()))
    elif kind == "conda":
        yield from map(normal, _ITEM.findall(text))
    else:
        for file in requirements.files(path, kind):
            yield from _listed_by_pip(file.read_text())


def _listed_by_pip(text: str) -> Iterator[str]:
    """Yield the packages that lines of a requirements file name. One that is known by its place
    alone, such as the folder itself (`-e .`), yields that.
    """
    for line in text.splitlines():
        its = re.sub(r"^(-e|--editable)\s+", "", line.split(" #")[0].strip())
        place = "://" in its.partition("@ ")[0] or its.startswith((".", "/"))
        if place:
            egg = its.partition("#egg=")[2]
            its = egg or its.partition("#")[0].rstrip("/").rpartition("/")[2].partition("@")[0]
        match = _NAME.match(its.removesuffix(".git"))
        if match or place:
            yield normal(match[0] if match else its)
