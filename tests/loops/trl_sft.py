"""TRL's SFTTrainer: a small Llama, completion of short texts, clipping, an evaluation each 20 updates."""

import tempfile

import datasets
import transformers
from hf_trainer import Tick
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

STEPS = 60
WORDS = [f"w{number}" for number in range(60)]


def make_tokenizer():
    names = ["<pad>", "<unk>", "<eos>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>"
    )


def make_data(count=48):
    return datasets.Dataset.from_list(
        [
            {"text": " ".join(WORDS[(7 * row + 3 * at) % 60] for at in range(6 + row % 7))}
            for row in range(count)
        ]
    )


def train(steps, watch, tick, *, peft_config=None):
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder,
            max_steps=steps,
            per_device_train_batch_size=4,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=20,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            max_length=16,
            dataset_num_proc=None,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
        )
        data = make_data()
        trainer = SFTTrainer(
            model,
            arguments,
            train_dataset=data,
            eval_dataset=data.select(range(8)),
            processing_class=make_tokenizer(),
            callbacks=[Tick(tick)],
            peft_config=peft_config,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        optimizer = trainer.create_optimizer()
        watch(trainer.model, optimizer)
        trainer.train()
    return [trainer.model]
