"""Text in and out of the engine, with the real model."""

from __future__ import annotations

import socket
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import httpx
import pytest
import uvicorn

from callboard import Engine, InvalidRequestError, ModelLoadError, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def make(**config) -> Engine:
    return Engine.from_pretrained("smollm2", **{"max_model_len": 1024, "num_kv_blocks": 300} | config)


def greedy(**params) -> SamplingParams:
    return SamplingParams(temperature=0, **{"max_tokens": 40} | params)


async def test_a_question_is_answered_sensibly_and_ends_by_itself(anyio_backend):
    async with make() as engine:
        outputs = [output async for output in engine.chat(QUESTION, greedy())]
    assert "Paris" in "".join(output.text for output in outputs)
    assert outputs[-1].outputs[0].finish_reason == "stop"
    assert not any("<|im_end|>" in output.text for output in outputs)


async def test_deltas_join_to_the_text_of_all_tokens_for_texts_of_every_script(anyio_backend):
    prompts = ["🎉🎂 Happy", "日本の首都は", "Le château était", "def f(x):\n"]
    async with make() as engine:
        for prompt in prompts:
            outputs = [output async for output in engine.generate(prompt, greedy(ignore_eos=True))]
            ids = [token for output in outputs for token in output.outputs[0].token_ids]
            assert "".join(output.text for output in outputs) == engine.tokenizer.decode(ids)
            assert len(ids) == 40


async def test_a_stop_string_cuts_text_ids_and_usage_and_frees_the_request(anyio_backend):
    async with make() as engine:
        whole = (await engine.complete("Count: one, two, three,", greedy())).outputs[0]
        cut = whole.text[5:9]
        final = await engine.complete("Count: one, two, three,", greedy(stop=[cut]))
        assert final.text == whole.text[: whole.text.index(cut)]
        assert (final.outputs[0].finish_reason, final.outputs[0].stop_reason) == ("stop", cut)
        assert final.outputs[0].token_ids == whole.token_ids[: final.usage.completion_tokens]
        kept = await engine.complete("Count: one, two, three,", greedy(stop=[cut], include_stop_str_in_output=True))
        assert kept.text == final.text + cut


async def test_a_stop_token_ends_the_text_before_it_and_is_named(anyio_backend):
    async with make() as engine:
        whole = (await engine.complete("Once upon a time", greedy())).outputs[0]
        token = whole.token_ids[6]
        final = (await engine.complete("Once upon a time", greedy(stop_token_ids=[token]))).outputs[0]
        first = whole.token_ids.index(token)
        assert (final.finish_reason, final.stop_reason) == ("stop", token)
        assert final.token_ids == whole.token_ids[: first + 1]
        assert final.text == engine.tokenizer.decode(whole.token_ids[:first])


async def test_a_seed_gives_the_same_text_alone_and_in_company(anyio_backend):
    params = SamplingParams(temperature=0.9, top_k=50, top_p=0.9, seed=11, max_tokens=24, output_kind="final")
    async with make() as engine:
        alone = (await engine.complete("The old library", params)).text
        async with anyio.create_task_group() as others:
            for number in range(6):
                others.start_soon(engine.complete, f"Number {number}", SamplingParams(max_tokens=30))
            assert (await engine.complete("The old library", params)).text == alone
        free = {(await engine.complete("The old library", SamplingParams(max_tokens=24))).text for _ in range(3)}
    assert len(free) == 3


async def test_a_prompt_that_is_too_long_is_refused_with_both_numbers_by_the_first_read(anyio_backend):
    async with make() as engine:
        stream = engine.generate("word " * 3000, greedy(), request_id="long")
        with pytest.raises(InvalidRequestError, match=r"prompt has \d+ tokens, limit is 1023 \(request long\)"):
            await anext(stream)
        assert (await engine.complete("Hi", greedy(max_tokens=3))).finished


async def test_a_model_that_is_not_there_is_named(anyio_backend):
    with pytest.raises(ModelLoadError, match="no-such-model"):
        Engine.from_pretrained("no-such-model")


async def test_the_hello_example_prints_an_answer_and_its_speed(anyio_backend):
    done = await anyio.run_process([sys.executable, str(EXAMPLES / "hello.py")])
    assert b"Paris" in done.stdout
    assert b"tokens/s" in done.stderr


@pytest.mark.parametrize(("typed", "answers"), [(b"hi\nbye\n", 2), (b"hi", 1), (b"", 0), (b"\nhi\n", 0)], ids=str)
async def test_the_chat_example_ends_in_order_at_the_end_of_its_input(anyio_backend, typed: bytes, answers: int):
    done = await anyio.run_process([sys.executable, str(EXAMPLES / "chat.py")], input=typed)
    *_, last = done.stdout.decode().splitlines()
    assert done.stdout.count(b"you: ") >= answers + 1  # an answer may say it, too
    assert last.endswith("prompt tokens came from the prefix cache")
    assert not done.stderr


def load_example(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[name] = module  # its annotations are looked up by the module's name
    spec.loader.exec_module(module)
    return module


class Server(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def test_a_web_client_that_disconnects_ends_its_request(anyio_backend):
    app: Any = load_example("fastapi_app").app
    port = free_port()
    server = Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="none"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await server.is_up.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            whole = await client.post("/chat", json={"content": QUESTION[0]["content"], "max_tokens": 20})
            assert "Paris" in whole.text
            body = {"content": "Tell me a very long story.", "max_tokens": 2000}
            async with client.stream("POST", "/chat", json=body) as response:
                async for _ in response.aiter_text():
                    break
            with anyio.fail_after(30):
                while (await client.get("/stats")).json()["num_finished"] < 2:
                    pass
            stats = (await client.get("/stats")).json()
            assert stats["num_running"] == stats["num_waiting"] == 0
            assert stats["num_generated_tokens"] < 1000
            refused = await client.post("/chat", json={"content": "x", "max_tokens": 0})
            assert refused.status_code == 422
        server.should_exit = True


async def test_the_stop_rule_example_ends_a_list_after_three_lines(anyio_backend):
    done = await anyio.run_process([sys.executable, str(EXAMPLES / "stop_rule.py")])
    *lines, end = done.stdout.decode().splitlines()
    assert (len(lines), end) == (3, "ended by: 3 lines")


async def test_the_example_of_log_probabilities_prefers_green_grass(anyio_backend):
    done = await anyio.run_process([sys.executable, str(EXAMPLES / "logprobs.py")])
    *words, green, purple = done.stdout.decode().splitlines()
    assert "' Paris'" in words[0]
    assert float(green.split()[0]) > float(purple.split()[0])
