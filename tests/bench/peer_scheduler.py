"""vLLM's scheduler driven alone, for ``bench_step.py``: reads names of cases, answers with microseconds.

Runs in an interpreter that has vLLM (0.32 was looked at) and need not have callboard:

    python tests/bench/peer_scheduler.py

Each line of standard input is a case, as in "decode 64", "admission cold", "admission hit",
"abort fcfs"; each line that begins with "=" is the answer. Requests, pool, budgets and what is timed
are those of ``bench_step.py``. What a model would have answered is made up outside of the time.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
MODEL = {  # only its configuration is read
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
}


class Peer:
    """One scheduler, and the hash of its blocks."""

    def __init__(self, folder: str, *, rows: int, blocks: int, policy: str = "fcfs") -> None:
        cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
        config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=rows,
                max_num_batched_tokens=8192,
                max_model_len=8192,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
                policy=policy,
            ),
            model_config=ModelConfig(
                model=folder, dtype="bfloat16", seed=0, max_model_len=8192, skip_tokenizer_init=True
            ),
            cache_config=cache,
            device_config=DeviceConfig("cpu"),
        )
        cache.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        digest = get_hash_fn_by_name(cache.prefix_caching_hash_algo)
        init_none_hash(digest)
        self.hasher = get_request_block_hasher(BLOCK, digest)
        self.core = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=False,
            structured_output_manager=StructuredOutputManager(config),
        )

    def request(self, name: str, tokens: list[int], max_tokens: int, priority: int = 0) -> Any:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
        return Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=params,
            pooling_params=None,
            priority=priority,
            block_hasher=self.hasher,
        )

    def step(self) -> tuple[float, int]:
        """Seconds of one step, and how many requests got a token."""
        began = time.perf_counter()
        plan = self.core.schedule()
        planned = time.perf_counter()
        names = list(plan.num_scheduled_tokens)
        tokens = [[] if self.core.requests[name].is_prefill_chunk else [77] for name in names]
        places = {name: place for place, name in enumerate(names)}
        result = ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=tokens)
        given = time.perf_counter()
        self.core.update_from_output(plan, result)
        return planned - began + time.perf_counter() - given, sum(map(len, tokens))


def decode(folder: str, running: int) -> float:
    chosen = random.Random(7)
    peer = Peer(folder, rows=1024, blocks=120_000)
    for number in range(running):
        prompt = [chosen.randrange(49_000) for _ in range(chosen.randint(256, 768))]
        peer.core.add_request(peer.request(f"r{number}", prompt, 6000))
    while peer.step()[1] < running:
        pass
    for _ in range(20):
        peer.step()
    gc.collect()
    return statistics.median(peer.step()[0] for _ in range(200)) * 1e6


def admission(folder: str, kind: str, prompts: list[list[int]]) -> float:
    peer = Peer(folder, rows=len(prompts), blocks=2 * len(prompts) * 1024 // BLOCK + 64)
    if kind == "hit":
        admit(peer, "w", prompts)
    gc.collect()
    return admit(peer, "r", prompts)


def admit(peer: Peer, kind: str, prompts: list[list[int]]) -> float:
    began = time.perf_counter()
    for number, tokens in enumerate(prompts):
        peer.core.add_request(peer.request(f"{kind}{number}", tokens, 1))
    took = time.perf_counter() - began
    while peer.core.has_unfinished_requests():
        took += peer.step()[0]
    return took / len(prompts) * 1e6


def abort(folder: str, policy: str) -> float:
    peer = Peer(folder, rows=256, blocks=1000, policy=policy)
    for number in range(10_000):
        peer.core.add_request(peer.request(str(number), [1] * 8, 8, number % 7))
    times: list[float] = []
    for number in random.Random(1).sample(range(10_000), 500):
        began = time.perf_counter()
        peer.core.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main() -> None:
    chosen = random.Random(3)
    prompts = [[chosen.randrange(49_000) for _ in range(1024)] for _ in range(256)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        for line in sys.stdin:
            case, what = line.split()
            if case == "decode":
                micros = decode(folder, int(what))
            elif case == "admission":
                micros = admission(folder, what, prompts)
            else:
                micros = abort(folder, what)
            print(f"={micros}", flush=True)


if __name__ == "__main__":
    main()
