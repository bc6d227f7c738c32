"""Hyperparameters: found where a script or a trainer has them, as text, without secrets."""

from __future__ import annotations

import argparse
import enum
import random
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from probe.delivery.recorder.hyperparameters import MOST, as_texts, find_hyperparameters, is_secret, seeds
from probe.delivery.recorder.run_facts import _arguments

NET = nn.Linear(2, 1)


class Kind(enum.Enum):
    ADAM = "adam"


@dataclass
class MyTrainingArguments:
    learning_rate: float = 3e-4
    hub_token: str = "hf_123"


MyTrainingArguments.__name__ = "TrainingArguments"


def test_values_are_texts_and_nested_names_have_their_path() -> None:
    nested = {"model": OrderedDict(depth=2, act=None), "at": Path("a/b"), "kind": Kind.ADAM}
    assert as_texts({"lr": 1e-3, "sizes": [1, 2]} | nested) == {
        "lr": "0.001", "model.depth": "2", "model.act": "None", "sizes": "1, 2", "at": "a/b", "kind": "adam",
    }  # fmt: skip


def test_values_that_may_be_large_or_run_code_are_named_by_their_type() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise AssertionError("its code must not run")

    assert as_texts({"a": Odd(), "b": torch.zeros(3), "c": torch.float16}) == {
        "a": f"<{Odd.__qualname__}>", "b": "<Tensor>", "c": "torch.float16",
    }  # fmt: skip


def test_number_and_length_are_bounded() -> None:
    found = as_texts({f"n{number}": "x" * 5000 for number in range(MOST + 9)})
    assert len(found) == MOST and len(found["n0"]) == 1000


@pytest.mark.parametrize("name", ["api_key", "api-key", "hub_token", "DB_PASSWORD", "aws.secret", "auth"])
def test_secret_names_are_hidden(name: str) -> None:
    assert is_secret(name) and as_texts({name: "abc"}) == {name: "***"}


@pytest.mark.parametrize("name", ["num_tokens_per_batch", "author", "keys", "key_dim", "tokenizer"])
def test_names_that_only_look_like_secrets_are_kept(name: str) -> None:
    assert as_texts({name: 5})[name] == "5"


def of_a_caller() -> tuple[dict[str, str], str]:
    options = argparse.Namespace(lr=0.5, password="x")  # noqa: F841 - found, not used
    return (lambda: find_hyperparameters(NET, sys._getframe()))()


def test_namespace_in_a_caller_is_found() -> None:
    assert of_a_caller() == ({"lr": "0.5", "password": "***"}, "argparse")


def test_trainers_arguments_come_before_a_namespace() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.args = MyTrainingArguments()

        def train(self) -> tuple[dict[str, str], str]:
            other = argparse.Namespace(lr=1)
            return find_hyperparameters(NET, sys._getframe()) if other else ({}, "")

    found, source = Trainer().train()
    assert source == "transformers" and found == {"learning_rate": "0.0003", "hub_token": "***"}


def test_hparams_of_a_module_are_found() -> None:
    model = nn.Linear(1, 1)
    model.hparams = {"width": 64}  # type: ignore[assignment]
    assert find_hyperparameters(model, None) == ({"width": "64"}, "lightning")


def test_looking_keeps_no_variable_of_a_function_alive() -> None:
    def train() -> int:
        batch = torch.zeros(1000)
        find_hyperparameters(NET, sys._getframe())
        return sys.getrefcount(batch)

    assert train() == 2


def test_seeds_tell_seeded_alike_from_seeded_otherwise_and_draw_nothing() -> None:
    def seeded(number: int) -> dict[str, str]:
        random.seed(number), np.random.seed(number), torch.manual_seed(number)
        return seeds()

    first = seeded(1)
    before = random.getstate(), torch.get_rng_state().clone()
    assert seeds() == first and seeded(1) == first
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    other = seeded(2)
    assert all(first[name] != other[name] for name in ("torch", "python state", "numpy state"))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["t.py", "--api-key=S", "--lr=1"], ["t.py", "--api-key=***", "--lr=1"]),
        (["t.py", "--token", "S", "x"], ["t.py", "--token", "***", "x"]),
        (["t.py", "--token", "--lr", "1"], ["t.py", "--token", "--lr", "1"]),
    ],
)
def test_command_line_is_kept_without_its_secrets(given: list[str], kept: list[str]) -> None:
    assert _arguments(given) == kept
