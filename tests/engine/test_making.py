"""What an engine is made of is checked when it is made; a model is read when the engine is entered, off the loop."""

import threading
from pathlib import Path

import pytest
from toy_engine import PROMPT, greedy, make

from callboard import ConfigError, Engine, EngineConfig, InvalidRequestError, ModelLoadError
from callboard.pipeline import loading
from callboard.runner import SimulatedRunner


def runner() -> SimulatedRunner:
    return SimulatedRunner(vocab_size=100, num_kv_blocks=64, block_size=16, max_model_len=100)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"config": {"block_size": 4}, "runner": runner()},
            r"config is \{'block_size': 4\}, needed is an EngineConfig",
        ),
        ({"runner": 3}, "runner is 3, needed is an object with the methods of Runner"),
        ({"runner": SimulatedRunner}, "runner is <class .*>, needed is an object with the methods of Runner"),
        ({"runner": runner(), "tokenizer": "smollm2"}, "tokenizer is 'smollm2', needed is a Tokenizer or None"),
    ],
    ids=["config", "runner", "class", "tokenizer"],
)
def test_what_an_engine_cannot_be_made_of_is_refused_at_once(given: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        Engine(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", "smollm2"), ("dtype", "bfloat16"), ("device", "cuda"), ("kv_cache_memory", 1 << 20), ("num_threads", 2)],
)
def test_settings_of_how_a_model_is_read_are_refused_beside_a_runner(name: str, value):
    with pytest.raises(ConfigError, match=f"^{name} is {value!r}, needed is its default: .* was given a runner"):
        Engine(EngineConfig(**{name: value}), runner=runner())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"path_or_name": "smollm2", "model": "other"}, ConfigError, "model is given twice: 'smollm2' and 'other'"),
        ({"path_or_name": "no-such-model"}, ModelLoadError, "no model 'no-such-model'"),
        ({"path_or_name": "smollm2", "dtype": "int3"}, ConfigError, "dtype is 'int3', supported are 'float32'"),
        ({"path_or_name": "smollm2", "device": "tpu"}, ConfigError, "device is 'tpu', supported is 'cpu'"),
    ],
    ids=["twice", "none", "dtype", "device"],
)
def test_a_model_that_is_not_there_or_cannot_be_read_so_is_refused_at_once(settings: dict, error: type, message: str):
    with pytest.raises(error, match=message):
        Engine.from_pretrained(**settings)


async def test_a_model_is_read_on_a_thread_when_the_engine_is_entered(monkeypatch: pytest.MonkeyPatch):
    threads: list[threading.Thread] = []

    def load(config: EngineConfig):
        threads.append(threading.current_thread())
        return runner(), None

    monkeypatch.setattr(loading, "load", load)
    engine = Engine.from_pretrained("smollm2")
    assert not threads
    with pytest.raises(ConfigError, match="the model 'smollm2' is not read yet"):
        _ = engine.tokenizer
    async with engine:
        assert (await engine.complete(PROMPT, greedy())).finished
        assert engine.runner.info.vocab_size == 100
    assert threads[0] is not threading.current_thread()


async def test_a_file_that_is_no_model_is_refused_when_the_engine_is_entered(tmp_path: Path):
    (tmp_path / "m.gguf").write_bytes(b"nothing of the kind")
    engine = Engine.from_pretrained(str(tmp_path / "m.gguf"))
    with pytest.raises(ModelLoadError, match=r"m\.gguf"):
        async with engine:
            pass


async def test_an_option_with_a_slip_in_its_name_is_refused_by_the_method_that_was_called():
    async with make() as engine:
        with pytest.raises(TypeError, match=r"Engine\.complete\(\) got an unexpected keyword argument 'priorty'"):
            await engine.complete(PROMPT, priorty=5)  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match=r"Engine\.chat\(\) got an unexpected keyword argument 'request'"):
            engine.chat([], request="a")  # pyright: ignore[reportCallIssue]


async def test_text_for_an_engine_without_a_tokenizer_is_refused_at_the_door():
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match=r"prompt is text and the engine has no tokenizer.*request r7"):
            engine.generate("text", greedy(), request_id="r7")
        assert not engine.stats().num_waiting
