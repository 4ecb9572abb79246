"""Gemma 3 with its sliding windows: greedy output is token for token what transformers gives."""

from __future__ import annotations

from typing import Any

import pytest
from parity_settings import all_at_once
from prompts import STORY, SYSTEM, TEXTS

from callboard import Engine, EngineConfig, SamplingParams
from callboard.runner import TorchRunner
from callboard.runner.shipped_models import find_shipped

MODEL = "gemma3-270m"
GREEDY = SamplingParams(temperature=0, max_tokens=32, output_kind="final", ignore_eos=True)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(isinstance(find_shipped(MODEL), str), reason=str(find_shipped(MODEL))),
]


@pytest.fixture(scope="module")
def source() -> Any:
    from callboard.runner.model_source import resolve_model

    return resolve_model(MODEL)


@pytest.fixture(scope="module")
def prompts(source: Any) -> list[list[int]]:
    """Seven, of 2 to 1,300 tokens; three are longer than the window of 512."""
    from callboard.pipeline.tokenizer import Tokenizer

    encode = Tokenizer.from_source(source).encode
    mixed = encode("\n\n".join(TEXTS))
    short = [encode(text) for text in ("Hi", TEXTS[4], TEXTS[10], SYSTEM + "Why is the sky blue?")]
    return [*short, mixed[:610], encode(STORY)[1:] + mixed[:560], encode(STORY * 40)[:800] + mixed[:500]]


@pytest.fixture(scope="module")
def reference_model(source: Any) -> Any:
    """Our weights in transformers' model."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    from transformers.initialization import no_init_weights

    from callboard.runner.weights import load_weights

    config = source.config
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "max_position_embeddings", "rms_norm_eps")
    theirs = Gemma3TextConfig(
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        sliding_window=512,
        **{name: getattr(config, name) for name in sizes},
    )
    with no_init_weights():
        model = Gemma3ForCausalLM(theirs)
    weights = load_weights(source, config)
    missing, unexpected = model.load_state_dict(_their_names(weights, config.num_layers), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def _their_names(weights: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """Names of Hugging Face; norms less 1."""
    parts = {
        "attn_norm": "input_layernorm",
        "attn_out_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_out_norm": "post_feedforward_layernorm",
        **{part: f"self_attn.{part}_proj" for part in "qkvo"},
        **{part: f"self_attn.{part}" for part in ("q_norm", "k_norm")},
        **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    }
    names = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    for layer in range(num_layers):
        names |= {f"layers.{layer}.{ours}": f"model.layers.{layer}.{theirs}.weight" for ours, theirs in parts.items()}
    return {theirs: weights[ours] - 1 if ours.endswith("norm") else weights[ours] for ours, theirs in names.items()}


def assert_greedy(model: Any, prompt: list[int], output: list[int]) -> None:
    """Each token is the likeliest after those before it, so the whole is what greedy decoding gives."""
    import torch

    assert len(output) == GREEDY.max_tokens
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output[:-1]]), logits_to_keep=len(output)).logits[0]
    assert output == logits.argmax(-1).tolist(), f"prompt of {len(prompt)} tokens"


BUDGET = 64  # tokens of a step
WINDOW_BLOCKS = -(-(512 - 1) // 16)  # what a token sees, in blocks


def make(source: Any, *, depth: int, num_kv_blocks: int) -> Engine:
    runner = TorchRunner.from_pretrained(source, max_model_len=2048, num_kv_blocks=num_kv_blocks)
    config = EngineConfig(max_model_len=2048, max_num_scheduled_tokens=BUDGET, steps_in_flight=depth)
    return Engine(config, runner=runner, tokenizer=None)


@pytest.fixture(scope="module")
def greedy(reference_model: Any) -> Any:
    """Asserts that outputs are those of transformers; each is looked at once."""
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()

    def check(prompts: list[list[int]], outputs: list[list[int]]) -> None:
        for prompt, output in zip(prompts, outputs, strict=True):
            if (pair := (tuple(prompt), tuple(output))) not in seen:
                assert_greedy(reference_model, prompt, output)
                seen.add(pair)

    return check


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.soak), 2, pytest.param(3, marks=pytest.mark.soak)])
async def test_greedy_tokens_are_those_of_transformers(anyio_backend, source, prompts, greedy, depth):
    async with make(source, depth=depth, num_kv_blocks=1300) as engine:
        greedy(prompts, await all_at_once(engine, prompts, GREEDY))
        assert [group.window for group in engine.stats().kv_groups] == [None] + [512] * 5
        again = [await engine.complete(prompt, GREEDY) for prompt in prompts]
        greedy(prompts, [output.outputs[0].token_ids for output in again])
        # All full blocks of each prompt are found but for the last token's.
        assert [output.num_cached_tokens for output in again] == [(len(p) - 1) // 16 * 16 for p in prompts]


@pytest.mark.soak
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_pool_in_which_only_the_windows_make_room_is_enough(anyio_backend, source, prompts, greedy):
    """Six tables of whole texts would take 6 * 84 blocks for the longest, these take 84 + 5 * 37 at most."""
    async with make(source, depth=1, num_kv_blocks=84 + 5 * 37) as engine:
        greedy(prompts, await all_at_once(engine, prompts, GREEDY))
        assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.soak
@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_window_groups_hold_their_window_while_the_other_grows(anyio_backend, source, prompts, depth):
    prompt, held = prompts[-1], []
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    async with make(source, depth=depth, num_kv_blocks=600) as engine:
        async for _ in engine.generate(prompt, params):
            held += [[group.num_blocks for group in engine.stats().kv_groups]]
        returned = [group.num_returned for group in engine.stats().kv_groups]
    whole, *windows = zip(*held[:-1], strict=True)  # at the end nothing is held
    assert list(whole) == sorted(whole)
    assert max(whole) == -(-(len(prompt) + 39) // 16)
    assert {max(group) for group in windows} <= set(range(WINDOW_BLOCKS, WINDOW_BLOCKS + depth * BUDGET // 16 + 2))
    # In the end the window alone, the token that was planned last, and what steps in flight have not passed yet.
    assert all(group[-1] <= WINDOW_BLOCKS + 2 for group in windows)
    assert returned[0] == 0
    assert all(count >= (len(prompt) + 39 - 512) // 16 - 1 for count in returned[1:])
