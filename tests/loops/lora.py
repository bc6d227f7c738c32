"""PEFT's LoRA on TRL's SFTTrainer: most of the parameters are frozen."""

import trl_sft
from peft import LoraConfig

STEPS = 60


def train(steps, watch, tick):
    config = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    return trl_sft.train(steps, watch, tick, peft_config=config)
