"""What `up` reads in a script before it makes anything: what nodes will miss, and nothing else."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from spotelastic.client.bringing_up import list_prices, node_packages, script_check
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check

SAVES = "from spotelastic import Checkpointer\n"
Look = Callable[..., list[str]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Writes files and returns what is said of train.py among them."""
    monkeypatch.chdir(tmp_path)

    def looked(script: str, files: dict[str, str] | None = None, **options: object) -> list[str]:
        for name, text in {"train.py": SAVES + script, **(files or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        job = check(JobConfig("train.py", **options), tmp_path)  # type: ignore[arg-type]
        return [*script_check.findings(job)]

    return looked


@pytest.mark.parametrize(
    "script",
    [
        "import os.path, json\nfrom collections import abc",
        "import torch\nfrom torch import nn\nimport numpy as np\nimport torchvision",
        "import rich, fsspec",  # spotelastic's own
        "import triton, sympy, pkg_resources",
        "from contextlib import suppress\nwith suppress(ImportError):\n    import wandb",
        "try:\n    import wandb\nexcept ImportError:\n    wandb = None",
        "import typing\nif typing.TYPE_CHECKING:\n    import wandb",
        "import helper\nfrom helper import x\nfrom parts.deep import y\nimport parts.deep.z",
        "from __future__ import annotations",
    ],
)
def test_imports_that_nodes_have_are_passed_over(look: Look, script: str) -> None:
    files = {"helper.py": "x = 1", "parts/deep/__init__.py": "y = 1", "parts/deep/z.py": ""}
    assert look(script, files) == []


@pytest.mark.parametrize(
    ("script", "module", "where"),
    [
        ("import wandb", "wandb", "train.py, line 2"),
        ("import torch, wandb.sdk as w", "wandb", "train.py, line 2"),
        ("def main():\n    from sklearn.svm import SVC", "sklearn", "train.py, line 3"),
        ("if __name__ == '__main__':\n    import wandb", "wandb", "train.py, line 3"),
        ("import helper", "einops", "helper.py, line 1"),
        ("from parts import model", "einops", "parts/model.py, line 1"),
        ("import parts.model as m", "einops", "parts/model.py, line 1"),
        ("from parts.model import near", "einops", "parts/near.py, line 1"),
    ],
)
def test_what_nothing_installs_is_told_once_with_its_place(
    look: Look, script: str, module: str, where: str
) -> None:
    files = {"helper.py": "import einops\nimport einops.layers", "parts/__init__.py": ""}
    files |= {"parts/model.py": "import einops" if "near" not in script else "from . import near"}
    files |= {"parts/near.py": "import einops"}
    (line,) = look(script, files)
    assert line == (
        f"{where}: imports {module}, which nothing installs on the nodes: add it to a "
        "requirements.txt"
    )


@pytest.mark.parametrize(
    ("listed", "module"),
    [
        ("wandb", "wandb"),
        ("WandB[media]>=0.19 ; python_version > '3'  # why", "wandb"),
        ("PyYAML", "yaml"),
        ("scikit_learn~=1.5", "sklearn"),
        ("opencv-python-headless", "cv2"),
        ("faiss-cpu", "faiss"),
        ("python-dotenv", "dotenv"),
        ("hydra-core==1.3", "hydra"),
        ("pytorch_lightning", "pytorch_lightning"),
        ("einops @ https://example.org/einops.tar.gz", "einops"),
        ("git+https://example.org/arogozhnikov/einops.git@main", "einops"),
        ("git+https://example.org/them/repository#egg=einops", "einops"),
        ("./wheels/einops-0.8-py3-none-any.whl", "einops"),
        ("-r more/others.txt", "einops"),
        ("google-cloud-storage", "google.cloud.storage"),
        ("PyJWT", "jwt"),
        ("tensorboardX", "tensorboardX"),
        ("pytest", "pluggy"),  # what a package needs in turn
    ],
)
def test_what_a_list_brings_is_passed_over(look: Look, listed: str, module: str) -> None:
    more = {"requirements.txt": f"# ours\n{listed}\n", "more/others.txt": "einops\n"}
    assert look(f"import {module}", more) == []


def test_what_a_list_may_bring_in_turn_is_told_with_care(look: Look) -> None:
    (line,) = look("import einops", {"requirements.txt": "not-installed-anywhere\n"})
    assert line.endswith("which requirements.txt does not name: add it there, unless another "
                         "package brings it")  # fmt: skip
    (line,) = look("import einops", {"requirements.txt": "idna\n"})
    assert line.endswith("which nothing installs on the nodes: add it to requirements.txt")
    (line,) = look("import einops", {"requirements.txt": "-e .\n", "pyproject.toml": ""})
    assert "unless another package brings it" in line


def test_locks_and_conda_environments_are_read(look: Look) -> None:
    lock = '[[package]]\nname = "einops"\nversion = "0.8"\n'
    both = "import einops\nimport wandb"
    (line,) = look(both, {"uv.lock": lock, "pyproject.toml": ""})
    assert "imports wandb, which nothing installs" in line and "uv.lock" in line
    conda = "dependencies:\n  - conda-forge::einops=0.8\n  - pip:\n    - tqdm>=4\n"
    (line,) = look(both + "\nimport tqdm", {"env.yml": conda}, environment="env.yml")
    assert "imports wandb, which env.yml does not name" in line


def test_the_set_up_an_image_and_this_machine_may_have_a_package(look: Look) -> None:
    assert look("import wandb", setup="pip install wandb") == []
    assert len(look("import einops", setup="pip install wandb")) == 1
    assert look("import wandb", image="registry/ours:1") == []
    assert look("import pytest, hypothesis", local=True) == []
    (line,) = look("import einops_of_nobody", local=True)
    assert "imports einops_of_nobody, which nothing installs" in line


def test_a_script_without_a_checkpointer_is_told_what_that_means(
    look: Look, tmp_path: Path
) -> None:
    def said(text: str) -> list[str]:
        return look("", {"train.py": text})

    (line,) = said("import torch\nprint(1)\n")
    assert line == (
        "train.py has no Checkpointer: nothing of it is saved, so each interruption starts it again"
        " from its first step; `spotelastic adapt train.py` writes one"
    )
    assert len(said("from spotelastic import ElasticSampler\n")) == 1
    for text in (
        "import spotelastic as se\nimport torch.distributed\nse.Checkpointer({})",
        "from spotelastic import dcp",
        "import spotelastic.dcp as checkpoints",
        "from spotelastic.integrations.transformers import ElasticTrainer",
        "from spotelastic.parameter_server import ParameterServer",
    ):
        assert said(text) == [], text
    assert look("", {"train.py": "import mine", "mine.py": SAVES}) == []


@pytest.mark.parametrize(
    "joins", ["import torch.distributed as dist", "from accelerate import Accelerator"]
)
def test_a_script_for_one_worker_is_told_apart(look: Look, joins: str) -> None:
    alone = "Checkpointer({})"
    (line,) = look(alone, local=True, max=2)
    assert "does not use torch.distributed" in line and "init_process_group()" in line
    assert "--min 1 --max 1" in line
    assert look(alone, local=True, min=1, max=1) == []
    assert not any("torch.distributed" in line for line in look(f"{joins}\n{alone}", max=2))
    helped = look(f"import helper\n{alone}", {"helper.py": joins}, max=2)
    assert not any("torch.distributed" in line for line in helped)


IGNORED = {".spotelasticignore": "/data\nkept/*.bin\n", "data/train.bin": "x", "kept/a.bin": "x"}
SHIPPED = {"config.yaml": "a: 1", "kept/here.txt": "x"}


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("open('data/train.bin')", "data/train.bin"),
        ("with open(file='x', mode='w'), open('data/train.bin', 'rb') as f:\n    pass",
         "data/train.bin"),
        ("import numpy as np\nnp.memmap('data/train.bin', dtype='u2', mode='r')", "data/train.bin"),
        ("import os\nopen(os.path.join('data', 'train.bin'))", "data/train.bin"),
        ("import pathlib\npathlib.Path('data/train.bin').read_bytes()", "data/train.bin"),
        ("from pathlib import Path\n(Path('data') / 'train.bin').open('rb')", "data/train.bin"),
        ("from pathlib import Path\nHERE = Path(__file__).resolve().parent\n"
         "DATA = HERE / 'data'\ndef f():\n    return open(DATA / 'train.bin')", "data/train.bin"),
        ("import os\nopen(os.path.join(os.path.dirname(__file__), 'kept/a.bin'))", "kept/a.bin"),
        ("import os\nos.listdir('data')", "data"),
        ("from torchvision.datasets import ImageFolder\nImageFolder('data')", "data"),
        ("import torch\ntorch.load('data/train.bin')", "data/train.bin"),
        ("import torch\ntorch.load('kept/a.bin')", "kept/a.bin"),
    ],
)  # fmt: skip
def test_files_that_are_read_and_not_shipped_are_told(look: Look, script: str, path: str) -> None:
    (line,) = look(script, {**IGNORED, **SHIPPED})
    assert re.fullmatch(
        rf"train\.py, line \d: reads {path}, which an ignore file keeps from being shipped: add "
        rf"the line !/{path} to \.spotelasticignore, or put it into a bucket \(--read\)",
        line,
    )


@pytest.mark.parametrize(
    "script",
    [
        "open('config.yaml')\nopen('./kept/here.txt')",
        "import os\nos.listdir('kept')\nos.listdir('.')",
        "import os\nif os.path.exists('cache.bin'):\n    open('cache.bin')",
        "import torch\ntorch.load('s3://bucket/model.pt')",
        "import os\nopen('/proc/meminfo')\nos.listdir('/tmp')",
        "open('/nowhere/to/be/found')",
        "def f(path='data/train.bin'):\n    open(path)",
        "import sys\nopen(sys.argv[1])",
        "import json\njson.load(open('config.yaml'))\n'a,b'.split('data')",
        "print('data/train.bin')",
        "import yaml\nyaml.load('a: 1\\n')\nyaml.load('x' * 9)\nyaml.load('" + "x" * 5000 + "')",
        "open('~nobody-of-this-name/data.bin')\nopen('a\\0b')\nopen('')",
        "import __main__",
        "import sys\nfrom pathlib import Path\nlog = Path(sys.argv[1])\nlog.open('a')",
        "from pathlib import Path\nimport sysconfig\nPath(sysconfig.get_path('x')).glob('*.py')",
        "import sys\nfrom pathlib import Path\nPath(sys.argv[1]).glob('sub')",
        "import glob\nglob.glob('data-[0-9]?.bin')\nopen('part-%d.bin')\nopen('part-{}.bin')",
        "i = 1\nopen(f'part-{i}.bin')\nopen('part-%d.bin' % i)\nopen('part-{}'.format(i))",
    ],
)
def test_other_files_are_passed_over(look: Look, script: str) -> None:
    assert look(script, {**IGNORED, **SHIPPED, "requirements.txt": "pyyaml"}) == []


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("import torch\ntorch.save({}, 'model.pt')\ntorch.load('model.pt')", "model.pt"),
        ("import torch as t\nNAME = './model.pt'\nt.save({}, NAME)", "model.pt"),
        ("from torch import save\nsave({}, 'model.pt')", "model.pt"),
        ("from safetensors.torch import save_file\nsave_file({}, 'a.safetensors')",
         "a.safetensors"),
        ("import numpy as np\nnp.save('a.npy', [1])\nnp.load('a.npy')", "a.npy"),
        ("import pandas\npandas.DataFrame().to_csv('a.csv', ';')", "a.csv"),
        ("df = get()\ndf.to_csv('a.csv')", "a.csv"),
        ("import matplotlib.pyplot as plt\nplt.savefig('a.png')", "a.png"),
        ("open('out.txt', 'w')\nopen('out.txt')", "out.txt"),
        ("open('out.txt', mode='ab')", "out.txt"),
        ("open('out.txt', 'x')", "out.txt"),
        ("from pathlib import Path\nPath('log').write_text('x')\nPath('log').open('a')", "log"),
        ("from pathlib import Path\n(Path(__file__).parent / 'log').open('w')", "log"),
    ],
)  # fmt: skip
def test_a_file_that_is_written_beside_the_script_is_told_once(
    look: Look, script: str, path: str
) -> None:
    (line,) = look(script, {"requirements.txt": "pandas\nmatplotlib\nsafetensors"})
    where = r"train\.py, line \d: writes " + re.escape(path) + ", which stays on its node: "
    assert re.fullmatch(where + r"write into \$SPOTELASTIC_OUTPUT, with --output DIR", line)
    (line,) = look(script, output=("out",))
    assert re.fullmatch(where + r"write into \$SPOTELASTIC_OUTPUT", line), "it is set"


@pytest.mark.parametrize(
    "script",
    [
        "import torch\ntorch.save({}, '/tmp/model.pt')\ntorch.save({}, 's3://bucket/model.pt')",
        "open('/dev/null', 'w')\nopen('../a', 'w')\nopen('~/a', 'w')\nopen('.cache/a', 'w')",
        "import os, torch\ntorch.save({}, os.path.join(os.environ['SPOTELASTIC_OUTPUT'], 'm.pt'))",
        "import os, pathlib\n"
        "(pathlib.Path(os.environ.get('SPOTELASTIC_OUTPUT', '.')) / 'log').open('w')",
        "import os, torch\nos.chdir(os.environ['SPOTELASTIC_OUTPUT'])\ntorch.save({}, 'm.pt')",
        "import torch\ndef keep(path='model.pt'):\n    torch.save({}, path)",
        "import torch\nfor i in range(3):\n    torch.save({}, f'model-{i}.pt')",
        "import zipfile\nwith zipfile.ZipFile('kept/here.txt') as z:\n    z.open('a', 'w')",
        "save({}, 'model.pt')\nself.save('model.pt')\nlog.write_text('done.txt')",
        "open('config.yaml', 'rb')\nopen('config.yaml', mode=chosen)",
        "import tempfile, torch\nwith tempfile.TemporaryDirectory() as d:\n"
        "    torch.save({}, d + '/model.pt')",
    ],
)
def test_what_is_kept_or_written_elsewhere_is_passed_over(look: Look, script: str) -> None:
    assert look(script, SHIPPED) == []


def test_a_file_in_a_folder_is_told_with_that_folder(look: Look) -> None:
    script = "import torch\ntorch.save({}, 'runs/a/model.pt')"
    (line,) = look(script)
    assert line.endswith("writes runs/a/model.pt, which stays on its node: --output runs")
    assert look(script, output=("runs",)) == []


STEPS = """\
import torch.distributed as dist
rank = {rank}
with Checkpointer({{}}) as checkpoint:
    for epoch in checkpoint.epochs(2, 4):
        for step in checkpoint.steps(4 * epoch + 4):
            with step:
                {first}
                if {read} == 0:
                    print(step.number)
"""


@pytest.mark.parametrize("rank", ["dist.get_rank()", "int(os.environ['RANK'])"])
def test_a_rank_that_is_kept_is_told_once(look: Look, rank: str) -> None:
    (line,) = look(STEPS.format(rank=rank, first="pass", read="rank"))
    assert line.startswith("train.py, line 3: rank is made of the ranks, and these change")


@pytest.mark.parametrize(
    ("rank", "first", "read"),
    [
        ("dist.get_rank()", "rank = dist.get_rank()", "rank"),
        ("dist.get_rank()", "pass", "dist.get_rank()"),
        ("int(os.environ['LOCAL_RANK'])", "pass", "rank"),
    ],
)
def test_a_rank_that_is_taken_again_is_passed_over(
    look: Look, rank: str, first: str, read: str
) -> None:
    assert look(STEPS.format(rank=rank, first=first, read=read)) == []


def test_files_that_are_nowhere_and_elsewhere_are_told(look: Look, tmp_path: Path) -> None:
    (line,) = look("open('settings.json')")
    assert line == (
        "train.py, line 2: reads settings.json, which is not in this folder, so no node has it"
    )
    assert look("open('settings.json')", setup="curl -O https://example.org/settings.json") == []
    outside = tmp_path.parent / "outside.bin"
    outside.write_text("x")
    (line,) = look("open('../outside.bin')")
    assert "reads ../outside.bin, which no node has: put it into this folder" in line


def test_a_plan_without_an_account_says_it_too(look: Look, tmp_path: Path) -> None:
    look("import wandb")
    job = check(JobConfig("train.py"), tmp_path)
    assert "imports wandb" in list_prices.planned(job).warnings[-1]


def test_what_each_worker_has_is_known_by_name() -> None:
    """Names that are compared are spelled as they are compared."""
    names = {*node_packages.TRAINING, *node_packages.OF_GPU_IMAGE}
    assert {node_packages.normal(name) for name in names} == names


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import spotelastic as se\nse.ElasticSampler(8, 4, virtual_ranks=2)", True),
        ("import helper", True),
        ("se.ElasticSampler(8, 4, virtual_ranks=args.pieces)", True),
        ("se.ElasticSampler(8, 4, virtual_ranks=None)", False),
        ("se.ElasticSampler(8, 4)  # virtual_ranks=2", False),
    ],
)
def test_a_script_that_deals_batches_out_may_have_unlike_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text("make(virtual_ranks=4)")
    (tmp_path / "train.py").write_text(SAVES + script)
    for exact in (False, True):
        job = script_check.with_virtual_ranks(check(JobConfig("train.py", exact=exact), tmp_path))
        assert (job.spec.virtual_ranks, job.spec.mixes) == (found, found and not exact)
        refused = any("--exact refuses it" in line for line in script_check.findings(job))
        assert refused is (exact and not found)
