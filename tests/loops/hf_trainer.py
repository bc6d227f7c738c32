"""HF Trainer: a small GPT-2, accumulation of two, clipping, an evaluation each 50 updates."""

import tempfile

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS = 100


class Tick(TrainerCallback):
    def __init__(self, tick):
        self.tick = tick

    def on_step_end(self, *args, **kwargs):
        self.tick()


def train(steps, watch, tick):
    transformers.logging.set_verbosity_error()
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=4, n_head=4, use_cache=False)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (steps + 1)))
    tokens = torch.randint(64, (64, 16))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            logging_steps=25,
            eval_strategy="steps",
            eval_steps=50,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            per_device_eval_batch_size=16,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=data,
            eval_dataset=data[:16],
            optimizers=(optimizer, schedule),
            callbacks=[Tick(tick)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        watch(model, optimizer)
        trainer.train()
    return [model]
