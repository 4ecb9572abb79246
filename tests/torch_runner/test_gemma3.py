"""A tiny Gemma 3 computes what transformers computes with the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from plan_maker import Device, blocks_for, text, watch_logits

from callboard.runner.model_source import resolve_model
from callboard.runner.weights import load_weights

CONFIG: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
}


def reference(**changes: Any) -> Any:
    """A model of transformers with random weights, norms included."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**(CONFIG | changes), attn_implementation="eager")).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}},
    ],
    ids=["pattern", "named layers", "scaled"],
)
def test_logits_and_tokens_agree_with_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = reference(**changes)
    model.save_pretrained(tmp_path)
    source = resolve_model(tmp_path)
    device = Device(source.config, load_weights(source, source.config))
    seen, prompt = watch_logits(device), text(37)
    device.admit("a", 0, prompt, blocks_for(50))
    assert device.run(a=20) == {}
    outputs = device.finish("a", 17, 12)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt + outputs])).logits[0, len(prompt) - 1 : -1]
    assert outputs == expected.argmax(-1).tolist()
    assert torch.allclose(torch.cat(seen[1:]), expected, atol=1e-4, rtol=0)
    assert float(expected.std()) > 0.1
