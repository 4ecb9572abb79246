"""Sessions as their users meet them: inputs in order, a stream for each, one text."""

import gc

import pytest
from anyio.lowlevel import checkpoint
from toy_engine import greedy, idle, make, read, until_running

from callboard import (
    Engine,
    EngineConfig,
    EngineDeadError,
    EngineOverloadedError,
    InvalidRequestError,
    NotBuiltError,
)
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens


def toy(text: list[int], count: int = 8) -> list[int]:
    return toy_tokens(text, count, 100)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("caching", [False, True])
async def test_an_input_goes_on_from_the_whole_text_and_computes_little(depth: int, caching: bool):
    async with make(steps_in_flight=depth, enable_prefix_caching=caching) as engine:
        text: list[int] = []
        async with engine.open_session(greedy()) as session:
            for chunk in ([1, 2, 3, 4, 5, 6], [7], [8, 9, 10]):
                outputs = [output async for output in session.send(chunk)]
                last, known = outputs[-1], len(text)
                text += chunk
                assert (last.prompt_token_ids, last.usage.prompt_tokens) == (text, len(text))
                assert last.num_cached_tokens in ((known - 1, known) if known else (0,))
                text += toy(text)
                assert session.token_ids == text
                assert last.outputs[0].finish_reason == "length"
                engine.check()
        await idle(engine)


async def test_early_inputs_are_taken_in_order_each_behind_the_end_of_the_one_before():
    async with make() as engine, engine.open_session(greedy()) as session:
        streams = [session.send([i, i + 1]) for i in (1, 3, 5)]
        text: list[int] = []
        for i, stream in zip((1, 3, 5), streams, strict=True):
            text += [i, i + 1]
            assert await read(stream) == (toy(text), "length")
            text += toy(text)
        assert session.token_ids == text


async def test_each_input_has_parameters_of_its_own_or_those_of_the_session():
    async with make() as engine, engine.open_session(greedy(max_tokens=2)) as session:
        assert len((await read(session.send([1])))[0]) == 2
        assert len((await read(session.send([2], greedy(max_tokens=5))))[0]) == 5


@pytest.mark.parametrize("ignored", [False, True])
async def test_a_token_that_ended_a_completion_does_not_stay_in_the_text(ignored: bool):
    end = toy([1, 2, 3])[3]
    runner = SimulatedRunner(vocab_size=100, num_kv_blocks=64, block_size=4, eos_token_ids=(end,))
    engine = Engine(EngineConfig(block_size=4), runner=runner)
    async with engine, engine.open_session(greedy(max_tokens=4, ignore_eos=ignored)) as session:
        tokens, _ = await read(session.send([1, 2, 3]))
        assert tokens[-1] == end
        assert session.token_ids == [1, 2, 3, *(tokens if ignored else tokens[:-1])]


@pytest.mark.parametrize("how", ["abort", "close", "drop"])
async def test_an_input_that_is_aborted_leaves_what_was_given_out(how: str):
    async with make() as engine, engine.open_session(greedy()) as session:
        stream = session.send([1, 2, 3], greedy(max_tokens=60))
        await until_running(engine, tokens=3)
        given = (await anext(stream)).outputs[0].token_ids
        if how == "abort":
            await engine.abort(stream.request_id)
        elif how == "close":
            await stream.aclose()
        else:
            del stream
            gc.collect()
        text = session.token_ids
        assert text[: 3 + len(given)] == [1, 2, 3, *given]
        assert await read(session.send([4])) == (toy([*text, 4]), "length")


async def test_an_input_that_is_aborted_before_its_turn_leaves_no_trace():
    async with make() as engine, engine.open_session(greedy()) as session:
        first, second, third = (session.send([i]) for i in (1, 2, 3))
        await engine.abort(second.request_id)
        assert await read(second) == ([], "abort")
        assert (await read(first), await read(third))[1] == (toy([1, *toy([1]), 3]), "length")
        engine.check()


async def test_an_input_that_makes_the_text_too_long_fails_and_the_session_lives_on():
    async with make() as engine, engine.open_session(greedy()) as session:
        await read(session.send([1] * 60))
        with pytest.raises(InvalidRequestError, match="prompt has 108 tokens, limit is 99"):
            await read(session.send([2] * 40))
        assert len(session.token_ids) == 68
        assert await read(session.send([3])) == (toy([*[1] * 60, *toy([1] * 60), 3]), "length")


async def test_what_a_session_cannot_do_is_refused_by_name():
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match="n is 2, needed is 1"):
            engine.open_session(greedy(n=2))
        with pytest.raises(NotBuiltError, match="adapter"):
            engine.open_session(adapter="a", session_id="s")
        with pytest.raises(InvalidRequestError, match="session id is ''"):
            engine.open_session(session_id="")
        session = engine.open_session(session_id="s")
        with pytest.raises(InvalidRequestError, match="session id 's' is in use"):
            engine.open_session(session_id="s")
        with pytest.raises(InvalidRequestError, match="n is 3, needed is 1"):
            session.send([1], greedy(n=3))
        with pytest.raises(InvalidRequestError, match="prompt has no tokens"):
            session.send([])
        await session.aclose()
        await session.aclose()
        with pytest.raises(InvalidRequestError, match="session 's' is closed"):
            session.send([1])
        await engine.open_session(session_id="s").aclose()
        await idle(engine)


async def test_closing_a_session_aborts_its_inputs_and_gives_everything_back():
    async with make() as engine:
        async with engine.open_session(greedy(max_tokens=60)) as session:
            streams = [session.send([i]) for i in (1, 2, 3)]
            await until_running(engine, tokens=3)
        assert [(await read(stream))[1] for stream in streams] == ["abort"] * 3
        await idle(engine)


async def test_a_session_that_is_dropped_lasts_until_its_inputs_have_ended():
    async with make() as engine:
        stream = engine.open_session(greedy(), session_id="s").send([1])
        assert await read(stream) == (toy([1]), "length")
        del stream
        for _ in range(3):
            gc.collect()
            await checkpoint()
        await idle(engine)
        await engine.open_session(session_id="s").aclose()


async def test_an_engine_stops_with_open_sessions():
    async with make() as engine:
        parked, running = engine.open_session(greedy()), engine.open_session(greedy(max_tokens=60))
        await read(parked.send([1]))
        streams = [running.send([i]) for i in (1, 2)]
        await until_running(engine)
        engine.check()
    assert [(await read(stream))[1] for stream in streams] == ["abort"] * 2
    engine.check()
    with pytest.raises(EngineDeadError):
        parked.send([2])
    await parked.aclose()
    await running.aclose()


async def test_a_dead_engine_is_the_end_of_all_inputs():
    async with make(faults={3: RuntimeError("broken")}) as engine:
        session = engine.open_session(greedy())
        streams = [session.send([i]) for i in (1, 2)]
        for stream in streams:
            with pytest.raises(EngineDeadError, match="broken"):
                await read(stream)
        with pytest.raises(EngineDeadError, match="broken"):
            session.send([3])


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
async def test_an_input_is_taken_in_while_the_engine_is_paused_and_served_afterwards(mode: str):
    async with make() as engine, engine.open_session(greedy()) as session:
        await read(session.send([1]))
        await engine.pause(mode)
        stream = session.send([2])
        await checkpoint()
        await engine.resume()
        assert await read(stream) == (toy([1, *toy([1]), 2]), "length")


async def test_a_pause_that_aborts_ends_all_inputs_and_the_session_goes_on():
    async with make() as engine, engine.open_session(greedy(max_tokens=60)) as session:
        streams = [session.send([i]) for i in (1, 2, 3)]
        await until_running(engine, tokens=2)
        await engine.pause("abort")
        assert [(await read(stream))[1] for stream in streams] == ["abort"] * 3
        await engine.resume()
        text = session.token_ids
        assert await read(session.send([9], greedy())) == (toy([*text, 9]), "length")
        engine.check()


async def test_the_cache_is_emptied_by_force_while_a_session_is_parked():
    async with make() as engine, engine.open_session(greedy()) as session:
        await read(session.send([1, 2, 3, 4]))
        assert await engine.reset_prefix_cache() is False
        assert await engine.reset_prefix_cache(force=True) is True
        text = session.token_ids
        last = [output async for output in session.send([5])][-1]
        assert (session.token_ids[len(text) + 1 :], last.num_cached_tokens) == (toy([*text, 5]), 0)


async def test_inputs_that_wait_count_against_the_waiting_room():
    async with make(max_waiting=1, max_num_running_reqs=1) as engine, engine.open_session(greedy()) as session:
        streams = [session.send([i]) for i in (1, 2)]
        with pytest.raises(EngineOverloadedError):
            session.send([3])
        for stream in streams:
            await read(stream)
