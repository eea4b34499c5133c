"""An export is a folder that transformers loads, where it is installed: `make test-examples`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.saving.ckpt_command import fine

from spotelastic import Checkpointer

TOKENS = 64


def model_of(transformers: Any) -> Any:
    """Its output layer is its embedding: one tensor under two names."""
    config = transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0
    )
    config.eos_token_id = 0
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("most", ["5GB", "4kB"])
def test_an_exported_model_is_loaded_by_its_library(tmp_path: Path, most: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = model_of(transformers)
    with Checkpointer({"model": model}, storage=str(tmp_path / "run")) as checkpoint:
        checkpoint.restore()
        checkpoint.step(1)
        checkpoint.save()
    model.config.save_pretrained(tmp_path / "hub")
    fine("export", tmp_path / "run", tmp_path / "hub", "--max-shard-size", most)

    loaded, told = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path / "hub", output_loading_info=True
    )
    assert not any(told.values())
    tokens = torch.arange(8).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)
