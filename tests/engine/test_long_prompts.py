"""Of a long prompt the host's loop does what takes no time; the rest is a thread's work."""

import threading
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from tokenizers import Tokenizer as Raw
from tokenizers.models import WordLevel

from callboard import Engine, EngineConfig, InvalidRequestError, SamplingParams
from callboard.pipeline.chat_template import ChatTemplate
from callboard.pipeline.tokenizer import Tokenizer
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens

TURN = {"role": "user", "content": "a"}
GREEDY = SamplingParams(temperature=0, max_tokens=4)


class Watched(Tokenizer):
    """Notes the thread of each rendering."""

    threads: list[threading.Thread]

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
        self.threads.append(threading.current_thread())
        return super().apply_chat_template(*args, **kwargs)


def make(template: str = "{% for m in messages %}{{ m.content }}{% endfor %}", **options: Any) -> Engine:
    runner = SimulatedRunner(vocab_size=100, num_kv_blocks=4096, block_size=4, max_model_len=10_000)
    raw = Raw(WordLevel({"a": 1, "b": 2, "?": 0}, unk_token="?"))
    chat = ChatTemplate({"default": template}, **options)
    tokenizer = Watched(raw, to_bytes=str.encode, template=chat)
    tokenizer.threads = []
    return Engine(EngineConfig(block_size=4), runner=runner, tokenizer=tokenizer)


async def test_a_short_conversation_is_a_prompt_at_once_and_a_long_one_in_a_thread():
    async with make() as engine:
        await anext(engine.chat([TURN], GREEDY))
        await anext(engine.chat([TURN] * 101, GREEDY))
        short, long = engine.tokenizer.threads
    assert short is threading.current_thread() is not long


async def test_bad_messages_are_refused_at_the_door_and_in_a_long_conversation_by_the_first_read():
    bad: dict[str, Any] = {"role": "user"}
    async with make() as engine:
        for messages in ([bad], [], "a", 7, None):
            with pytest.raises(InvalidRequestError, match=r"has no content|a list of at least one message"):
                engine.chat(messages, GREEDY)
        stream = engine.chat([TURN] * 100 + [bad], GREEDY)
        with pytest.raises(InvalidRequestError, match=r"messages\[100\] has no content"):
            await anext(stream)
        assert not engine.stats().num_waiting


@pytest.mark.parametrize(
    ("template", "turns", "reason"),
    [
        ("{{ raise_exception('no more of this') }}", 1, "chat template 'default': no more of this"),
        ("{{ raise_exception('no more of this') }}", 101, "chat template 'default': no more of this"),
        ("{% if %}", 1, "chat template 'default', line 1: Expected an expression, got 'end of statement block'"),
        ("{{ messages[0].content.half.more }}", 101, "chat template 'default': 'str object' has no attribute 'half'"),
    ],
    ids=["at the door", "in the thread", "not compiled", "not rendered"],
)
async def test_an_error_of_a_template_names_its_request_and_keeps_its_cause(template: str, turns: int, reason: str):
    async with make(template) as engine:
        with pytest.raises(InvalidRequestError) as caught:
            await anext(engine.chat([TURN] * turns, GREEDY, request_id="r7"))
        assert str(caught.value) == f"{reason} (request r7)"
        assert caught.value.__cause__ is not None


async def test_messages_that_are_none_are_refused_with_the_request():
    async with make() as engine:
        for messages in (None, [], [{"role": "user"}], 7):
            with pytest.raises(InvalidRequestError, match=r"^messages.* \(request r7\)$"):
                engine.chat(messages, GREEDY, request_id="r7")
        with pytest.raises(InvalidRequestError, match=r"^tools is int, needed is a list of tools \(request r7\)$"):
            engine.chat([TURN], GREEDY, tools=7, request_id="r7")  # pyright: ignore[reportArgumentType]


async def test_a_template_that_is_slow_from_the_start_is_left_to_the_thread():
    slow = "{% for i in range(1000) %}{{ i }}{% endfor %}"
    async with make(slow, time_limit=0.0) as engine:
        engine.tokenizer.has_slow_template = True
        stream = engine.chat([TURN], GREEDY)
        assert not engine.tokenizer.threads
        with pytest.raises(InvalidRequestError, match=r"chat template 'default': not rendered after 0\.0 s"):
            await anext(stream)


async def test_a_long_conversation_is_its_callers_no_longer_once_it_is_in():
    turn = dict(TURN)
    async with make("{{ messages[0].content }}") as engine:
        stream = engine.chat([turn] * 200, GREEDY)
        turn["content"] = "b"
        assert (await anext(stream)).prompt_token_ids == [1]


async def test_a_long_list_of_tokens_is_its_callers_no_longer_once_it_is_in():
    tokens = [1, 2, 3, 4] * 2_000
    expected = toy_tokens(tokens, 4, 100)
    async with make() as engine:
        stream = engine.generate(tokens, GREEDY)
        tokens[5] = 17
        await checkpoint()
        assert [t async for output in stream for t in output.outputs[0].token_ids] == expected


async def test_a_prompt_of_too_many_tokens_is_refused_at_once():
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match="prompt has 10000 tokens, limit is 9999"):
            engine.generate([1] * 10_000, GREEDY)


async def test_a_bad_token_in_a_long_prompt_is_told_by_the_first_read_with_its_place():
    async with make() as engine:
        stream = engine.generate([1] * 4_999 + ["x"], GREEDY)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidRequestError, match=r"prompt\[4999\] is 'x', needed is a token id"):
            await anext(stream)


def test_a_template_that_is_slow_for_one_message_is_known_before_the_first_request():
    tokenizer = make("{% for i in range(400000) %}{{ i }}{% endfor %}").tokenizer
    tokenizer.warm_up()
    assert tokenizer.has_slow_template
    tokenizer = make().tokenizer
    tokenizer.warm_up()
    assert not tokenizer.has_slow_template


class Panic(BaseException):
    """What native code of a tokenizer raises when it breaks is no Exception."""


class Panicking(Watched):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if text.startswith("b"):
            raise Panic("index out of range")
        return super().encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("length", [1, 5_000], ids=["short", "long"])
async def test_a_tokenizer_that_breaks_over_a_prompt_ends_its_request_and_nobody_elses(length: int):
    async with make() as engine:
        engine.tokenizer.__class__ = Panicking
        other = engine.generate("a", GREEDY)
        with pytest.raises(InvalidRequestError, match=r"cannot be read: Panic.*\(request broken\)") as caught:
            await engine.complete("b" * length, GREEDY, request_id="broken")
        assert isinstance(caught.value.__cause__, Panic)
        assert len([token async for output in other for token in output.outputs[0].token_ids]) == 4
        engine.check()
