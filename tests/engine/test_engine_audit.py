"""The engine's audit sets its parts against each other, and the board tells its counts."""

from typing import Any

import anyio
import pytest

from callboard import BooksError, Engine, EngineConfig, SamplingParams
from callboard.pipeline.board import Board
from callboard.pipeline.stream import StreamState
from callboard.runner import SimulatedRunner
from callboard.scheduler.messages import Release, Reserve

PARAMS = SamplingParams(temperature=0, max_tokens=30)


async def test_the_audit_finds_a_running_request_whose_blocks_the_kv_cache_does_not_know():
    runner = SimulatedRunner(vocab_size=100, num_kv_blocks=32, block_size=4, max_model_len=64)
    async with Engine(EngineConfig(block_size=4), runner=runner) as engine:
        stream = engine.generate([1, 2, 3], PARAMS, request_id="a")
        await anext(stream)
        runner.gate.close()
        await anyio.wait_all_tasks_blocked()
        engine.check()
        parts: Any = engine._parts  # pyright: ignore[reportPrivateUsage]
        parts.kv.core.reserve(Reserve(completed=0, release=[Release(req_id="a", fence=0)]))
        with pytest.raises(BooksError, match=r"requests run without a block table: \['a'\]"):
            engine.check()
        runner.gate.open()


async def test_the_audit_holds_at_any_moment_while_requests_come_and_go():
    runner = SimulatedRunner(vocab_size=100, num_kv_blocks=12, block_size=4, max_model_len=64)
    async with Engine(EngineConfig(block_size=4, max_num_running_reqs=4), runner=runner) as engine:
        streams = [engine.generate([n, 2, 3], PARAMS) for n in range(8)]
        for number, stream in enumerate(streams):
            async for output in stream:
                engine.check()
                if number % 3 == 0 and output.outputs[0].token_ids:
                    await stream.aclose()
                    break
        engine.check()
        assert engine.stats().num_preemptions
    engine.check()


def test_the_board_tells_how_many_streams_it_has_and_how_many_are_leaving():
    board = Board(lambda keys: None, lambda key: None)
    states = [StreamState(name, PARAMS, None, 0.0) for name in ("a", "b", "c")]
    for state in states:
        board.add([state])
        board.load.enter(state.key, 5)
    board.abort_id("a", 1.0)
    counts = board.statistics()
    assert (counts.num_streams, counts.num_leaving, counts.num_waiting_tokens, counts.num_finished) == (2, 1, 10, 1)
