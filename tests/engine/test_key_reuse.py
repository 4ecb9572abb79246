"""An id may be used again as soon as its request has ended; the new request gets nothing of the old one's end."""

import pytest
from anyio.lowlevel import checkpoint
from toy_engine import greedy, idle, make

from callboard.runner.toy_model import toy_tokens

NEW = [7, 8, 9]


async def tokens_and_end(stream) -> tuple[list[int], str | None]:
    outputs = [output async for output in stream]
    return [t for output in outputs for t in output.outputs[0].token_ids], outputs[-1].outputs[0].finish_reason


@pytest.mark.parametrize("depth", [1, 2, 4])
async def test_the_abort_of_an_input_that_waits_does_not_reach_the_next_request_of_its_id(depth: int):
    for spins in range(30):
        async with make(steps_in_flight=depth) as engine:
            session = engine.open_session(session_id="s")
            other = engine.generate([1, 2, 3], greedy(max_tokens=40))
            first, waiting = session.send([4, 5], greedy(max_tokens=30)), session.send([6], greedy())
            for _ in range(spins):
                await checkpoint()
            await waiting.aclose()
            new = engine.generate(NEW, greedy(), request_id=waiting.request_id)
            assert await tokens_and_end(new) == (toy_tokens(NEW, 8, 100), "length")
            for stream in (first, other):
                await stream.aclose()
            await session.aclose()
            await idle(engine)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("between", [0, 1, 2, 3])
async def test_the_abort_of_a_request_on_its_way_in_does_not_reach_the_next_of_its_id(depth: int, between: int):
    for spins in range(12):
        async with make(steps_in_flight=depth) as engine:
            others = [engine.generate([n, 2, 3], greedy(max_tokens=40)) for n in range(2)]
            for _ in range(spins):
                await checkpoint()
            old = engine.generate([4, 5, 6], greedy(), request_id="r")
            await old.aclose()
            for _ in range(between):
                await checkpoint()
            new = engine.generate(NEW, greedy(), request_id="r")
            assert await tokens_and_end(new) == (toy_tokens(NEW, 8, 100), "length")
            for stream in others:
                await stream.aclose()
            await idle(engine)
