"""Scheduling policies on a running engine."""

from collections.abc import Sequence

import anyio
import pytest
import structlog
from toy_engine import PROMPT, greedy, idle, make, read

from callboard import ConfigError, Engine, PolicyError
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import FCFSPolicy, RequestState


class Failing(FCFSPolicy):
    """Takes requests in, and breaks on whom to choose."""

    def candidates(self, limit: int, now: float) -> list[RequestState]:
        raise KeyError("lost")


class Closing(FCFSPolicy):
    """Names nobody while it is closed."""

    is_open = True

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:
        return super().candidates(limit, now) if self.is_open else []


class Refusing(FCFSPolicy):
    """Takes nobody whose id begins with an x."""

    def add(self, state: RequestState) -> None:
        if state.request_id.startswith("x"):
            raise ValueError("no x")
        super().add(state)


async def order_of_admission(engine: Engine, swap: str) -> list[str]:
    """One row and a closed gate: three wait when the policy changes."""
    admitted: list[str] = []
    engine.runner.gate.close()
    events = engine.events()
    streams = [
        engine.generate([n, *PROMPT], greedy(), request_id=f"r{n}", priority=priority)
        for n, priority in enumerate([5, 9, 3, 1])
    ]
    await anyio.wait_all_tasks_blocked()
    await engine.swap_policy(swap)
    engine.runner.gate.open()
    for n, stream in enumerate(streams):
        tokens = [t for output in [o async for o in stream] for t in output.outputs[0].token_ids]
        assert tokens == toy_tokens([n, *PROMPT], 8, 100)
    async for event in events:
        admitted += [event.request_id] if event.kind == "SCHEDULED" else []
        if len(admitted) == len(streams):
            return admitted
    raise AssertionError(admitted)


@pytest.mark.parametrize("swap", ["priority", "fcfs"])
async def test_a_policy_is_swapped_under_traffic_and_no_request_is_lost(swap: str):
    async with make(max_num_running_reqs=1, policy="fcfs") as engine:
        rest = ["r3", "r2", "r1"] if swap == "priority" else ["r1", "r2", "r3"]
        assert await order_of_admission(engine, swap) == ["r0", *rest]
        await idle(engine)


async def test_a_swap_to_no_policy_is_refused_and_the_engine_goes_on():
    async with make() as engine:
        with pytest.raises(ConfigError, match="policy is 'sjf', known are"):
            await engine.swap_policy("sjf")
        with pytest.raises(ConfigError, match="an object with the methods of Policy"):
            await engine.swap_policy(FCFSPolicy)
        assert (await engine.complete(PROMPT, greedy())).finished


class Shy(FCFSPolicy):
    """Cannot be shown, and does not take anything."""

    def __repr__(self) -> str:
        raise ValueError("not to be shown")


async def test_what_cannot_even_be_shown_is_refused_and_the_engine_goes_on():
    async with make() as engine:
        with pytest.raises(ConfigError, match="needed is a name or an object with the methods of Policy"):
            await engine.swap_policy(type("Nothing", (), {"__repr__": Shy.__repr__})())
        await engine.swap_policy(Shy())
        assert (await engine.complete(PROMPT, greedy())).finished


async def test_a_policy_that_breaks_is_given_up_and_diagnose_says_so_until_another_takes_over():
    async with make(policy=Failing()) as engine:
        with structlog.testing.capture_logs() as logs:
            assert (await engine.complete(PROMPT, greedy())).outputs[0].token_ids == toy_tokens(PROMPT, 8, 100)
        told = "Failing.candidates failed: KeyError('lost')"
        assert [(entry["event"], entry["error"]) for entry in logs] == [("policy_failed", told)]
        assert engine.diagnose().startswith(f"the policy was given up, requests go on under 'fcfs': {told}\n")
        await engine.swap_policy("fcfs")
        assert "given up" not in engine.diagnose()
        await idle(engine)


async def test_who_is_held_back_while_nothing_runs_is_told_of_and_goes_on_when_the_engine_is_woken():
    policy = Closing()
    async with make(policy=policy) as engine:
        policy.is_open = False
        stream = engine.generate(PROMPT, greedy())
        await anyio.wait_all_tasks_blocked()
        assert engine.diagnose().startswith("nothing runs: the policy holds back 1 requests, until something arrives\n")
        policy.is_open = True
        await engine.resume()
        assert (await read(stream))[0] == toy_tokens(PROMPT, 8, 100)
        assert "holds back" not in engine.diagnose()
        await idle(engine)


async def test_one_policy_object_serves_one_engine_at_a_time():
    policy = FCFSPolicy()
    async with make(policy=policy) as engine:
        with pytest.raises(ConfigError, match="policy FCFSPolicy serves another engine"):
            async with make(policy=policy):
                pass
        async with make() as other:
            with pytest.raises(ConfigError, match="policy FCFSPolicy serves another engine"):
                await other.swap_policy(policy)
        assert (await engine.complete(PROMPT, greedy())).finished
    async with make(policy=policy) as engine:
        assert (await engine.complete(PROMPT, greedy())).finished


async def test_a_request_that_a_policy_refuses_ends_with_its_reason_and_the_others_go_on():
    async with make(policy=Refusing()) as engine:
        with pytest.raises(PolicyError, match=r"Refusing.add failed: ValueError\('no x'\) \(request x\)"):
            await engine.complete(PROMPT, greedy(), request_id="x")
        assert (await engine.complete(PROMPT, greedy(), request_id="y")).outputs[0].finish_reason == "length"
        await idle(engine)
