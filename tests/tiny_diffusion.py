"""Models and pipelines of `diffusers`, tiny and random; tests are skipped where it is not installed."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch


def diffusers() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        return pytest.importorskip("diffusers")


def unet(**options: Any) -> Any:
    torch.manual_seed(0)
    return diffusers().UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
        norm_num_groups=4, cross_attention_dim=8, attention_head_dim=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), **options,
    ).eval()  # fmt: skip


def vae() -> Any:
    torch.manual_seed(1)
    return diffusers().AutoencoderKL(
        block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    ).eval()  # fmt: skip


def transformer() -> Any:
    torch.manual_seed(2)
    return diffusers().DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=4, in_channels=4, num_layers=1, sample_size=8,
        patch_size=2, num_embeds_ada_norm=10, norm_num_groups=2,
    ).eval()  # fmt: skip


def scheduler(name: str, steps: int, **options: Any) -> Any:
    made = getattr(diffusers(), name)(**options)
    made.set_timesteps(steps)
    return made


def latent_pipeline(steps: int = 6) -> Any:
    """A real StableDiffusionPipeline without texts: it is called with embeddings."""
    pipeline = diffusers().StableDiffusionPipeline(
        vae=vae(), text_encoder=None, tokenizer=None, unet=unet(),
        scheduler=scheduler("DDIMScheduler", steps, clip_sample=False, steps_offset=1),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def sample(pipeline: Any, steps: int, **options: Any) -> Any:
    """Run it on seeded noise; returns latents."""
    return pipeline(
        prompt_embeds=torch.ones(1, 3, 8), num_inference_steps=steps, guidance_scale=1.0, height=16, width=16,
        output_type="latent", generator=torch.Generator().manual_seed(0), **options,
    )  # fmt: skip
