"""The real model, and what transformers makes of its weights."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from parity_settings import GENERATED, MODEL, NEW_TOKENS, all_at_once
from prompts import prompts

from callboard import Engine


@pytest.fixture(scope="session")
def source() -> Any:
    from callboard.runner.model_source import resolve_model

    return resolve_model(MODEL)


@pytest.fixture(scope="session")
def token_ids(source: Any) -> list[list[int]]:
    from callboard.pipeline.tokenizer import Tokenizer

    return prompts(Tokenizer.from_source(source).encode)


@pytest.fixture(scope="session")
def reference_model(source: Any) -> Any:
    """Our weights in transformers' model: parity is on the computation, not on the file reader."""
    return make_reference_model(source)


def make_reference_model(source: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from callboard.runner.weights import load_weights

    config, weights = source.config, load_weights(source, source.config, torch.float32)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=config.tie_word_embeddings,
            bos_token_id=config.bos_token_id,
            eos_token_id=list(config.eos_token_ids),
        )
    )
    missing, unexpected = model.load_state_dict(_their_names(weights, config.num_layers), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def _their_names(weights: dict[str, Any], num_layers: int) -> dict[str, Any]:
    names = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    parts = {
        "attn_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        **{part: f"self_attn.{part}_proj" for part in "qkvo"},
        **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    }
    for layer in range(num_layers):
        names |= {f"layers.{layer}.{ours}": f"model.layers.{layer}.{theirs}.weight" for ours, theirs in parts.items()}
    return {theirs: weights[ours] for ours, theirs in names.items()}


def generate_alone(model: Any, prompt: list[int], count: int, *, stop: bool = True) -> list[int]:
    """Greedy continuation by transformers, one prompt at a time."""
    import torch

    eos = {} if stop else {"eos_token_id": None}
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0, use_cache=True, **eos
        )
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def expected(reference_model: Any, token_ids: list[list[int]]) -> list[list[int]]:
    """What greedy generation with transformers in float32 gives for each prompt alone.

    Generating all of it anew takes minutes. One forward pass over a prompt and a continuation
    shows the same: the continuation is the greedy one if, and only if, each of its tokens is the
    argmax behind those before it. So the engine proposes and transformers' model decides; a few
    are also generated step by step.
    """
    proposed = anyio.run(_propose, token_ids)
    for prompt, tokens in zip(token_ids, proposed, strict=True):
        assert greedy_choices(reference_model, prompt, tokens) == tokens
        assert len(tokens) == NEW_TOKENS or tokens[-1] in reference_model.config.eos_token_id
    for number in GENERATED:
        assert generate_alone(reference_model, token_ids[number], NEW_TOKENS) == proposed[number]
    return proposed


async def _propose(token_ids: list[list[int]]) -> list[list[int]]:
    async with Engine.from_pretrained(MODEL, max_model_len=2048, num_kv_blocks=600) as engine:
        return await all_at_once(engine, token_ids)


def greedy_choices(model: Any, prompt: list[int], tokens: list[int]) -> list[int]:
    """The argmax of transformers' logits at each place of a continuation."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    return logits.argmax(-1).tolist()
