"""What the programs for Hugging Face's libraries train: made here, nothing is downloaded."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def gpt2() -> GPT2LMHeadModel:
    """Without dropout, of which a node that vanished would take the generator along."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64,
            n_positions=16,
            n_embd=32,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def sentences() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(64, (128, 16), generator=generator).cumsum(1) % 64
    return [{"input_ids": row, "labels": row} for row in rows]
