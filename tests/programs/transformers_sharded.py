"""transformers.Trainer as the plug-in makes it elastic, with FSDP2 on GPUs.

torchrun --nproc-per-node 2 tests/programs/transformers_sharded.py
"""

import transformers_elastic

if __name__ == "__main__":
    transformers_elastic.main(
        fsdp="full_shard auto_wrap",
        fsdp_config={"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"]},
    )
