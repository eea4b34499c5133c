"""Tells which packages a job's nodes have.

These are spotelastic's own, those of the machine image, and those that the folder's list names.
Nothing is installed, and no index is asked.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

from spotelastic.aws.artifacts import requirements
from spotelastic.aws.base.infra_files import infra
from spotelastic.client.config.validated_job import ValidatedJob

TRAINING = frozenset(
    {"torch", "numpy", "setuptools", "pip", "filelock", "networkx", "sympy", "mpmath"}
    | {"spotelastic", "spotelastic-checkpoints"}
)
"""Packages that every worker has, with those that torch needs, which may not be installed here."""
OF_GPU_IMAGE = ("torchvision", "torchaudio", "pillow", "triton")
"""Further ones of AWS's Deep Learning images, which types with GPUs run."""
_NAMED_OTHERWISE = """Bio=biopython Crypto=pycryptodome OpenSSL=pyopenssl PIL=pillow attr=attrs
bs4=beautifulsoup4 cv2=opencv fitz=pymupdf flash_attn=flash-attention git=gitpython osgeo=gdal
mpl_toolkits=matplotlib open_clip=open-clip-torch pkg_resources=setuptools pylab=matplotlib
ruamel=ruamel-yaml skimage=scikit-image sklearn=scikit-learn yaml=pyyaml zmq=pyzmq"""
DISTRIBUTIONS = dict(re.findall(r"(\w+)=(\S+)", _NAMED_OTHERWISE))
"""Modules that are named otherwise than the package that brings them."""
_by_module = cache(packages_distributions)  # it reads the lists of all files of all packages
_WORD = r"[A-Za-z0-9](?:[\w.]|-(?!\d))*"
_ITEMS = {
    "uv": re.compile(r'^name = "(.*)"', re.MULTILINE),
    "conda": re.compile(r"^\s*-\s+[\"']?(?:[\w.-]+::)?([A-Za-z0-9][\w.-]*)", re.MULTILINE),
}
"""A package in a list, with or without its channel."""


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
        names = {normal(module), DISTRIBUTIONS.get(module, normal(module))}
        names |= {normal(each) for each in _by_module().get(module, ())}
        return any(
            re.fullmatch(rf"(py|python-)?{re.escape(name)}\d?(-.*)?", each)
            for name in names
            for each in self.names
        )


def of(job: ValidatedJob, folder: Path) -> NodePackages:
    """Return the packages of the nodes of a job whose code is `folder`."""
    own = {*TRAINING, *_words(infra("boot/packages.txt").read_text())}
    if any(name[0] in "gp" for name in job.spec.instance_types or ("g",)):
        own |= {*OF_GPU_IMAGE}
    own, _ = _with_needs(own)
    wanted = job.spec.environment
    if wanted is None:
        return NodePackages(frozenset(own), here=job.config.local)
    texts = [path.read_text() for path in requirements.files(folder / wanted.file, wanted.kind)]
    if wanted.kind == "pip":
        needs, known = _with_needs({*_words("\n".join(texts))})
    else:
        needs, known = {normal(n) for n in _ITEMS[wanted.kind].findall(texts[0])}, False
    known = known or wanted.kind == "uv"
    return NodePackages(frozenset(own | needs), wanted.file, known, here=job.config.local)


def normal(name: str) -> str:
    """Return a name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _with_needs(names: Collection[str]) -> tuple[set[str], bool]:
    """Return packages with all that they need, and whether all of that is known.

    It is known if each of the packages is installed here, because the installation tells what they
    need.
    """
    found, left, known = {*names}, [*names], True
    for name in left:  # which grows
        try:
            needs = "\n".join(each for each in requires(name) or () if "extra ==" not in each)
        except PackageNotFoundError:
            known = False
            continue
        left += {*_words(needs)} - found
        found |= {*left}
    return found, known


def _words(text: str) -> Iterator[str]:
    """Yield the names in each line of a requirements file. Of a URL each part may be one."""
    for line in text.splitlines():
        if not re.match(r"\s*(#|-(?!e|-editable))", line):
            its = line.partition(" #")[0].partition(";")[0]
            yield from map(
                normal, re.findall(_WORD, its) if "/" in its else re.findall(_WORD, its)[:1]
            )
