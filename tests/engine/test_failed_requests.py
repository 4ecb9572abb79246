"""A runner that could do nothing for a request, or did not give what it asked for, ends that request alone."""

import numpy as np
import pytest
from test_engine import PROMPT, greedy, idle

from callboard import CallboardError, Engine, EngineConfig, EngineDeadError
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import ModelRunnerOutput
from callboard.scheduler.logprobs import LogprobColumns


class Claims(SimulatedRunner):
    """Says of itself that it gives log-probabilities; what it gives, a test decides."""

    def __init__(self, **given) -> None:
        super().__init__(vocab_size=100, num_kv_blocks=64, block_size=4, max_model_len=100)
        self.info = type(self.info)(
            vocab_size=100,
            num_kv_blocks=64,
            block_size=4,
            max_model_len=100,
            capabilities=frozenset({"logprobs", "prompt_logprobs"}),
        )
        self.given = given

    async def execute(self, plan, submitted, grammar=None):
        output = await super().execute(plan, submitted)
        given = {
            name: {key: value for key, value in of.items() if key in plan.req_ids or key == "nobody"}
            for name, of in self.given.items()
        }
        return ModelRunnerOutput(step=plan.step, token_ids=output.token_ids, **given)


def make(**given) -> Engine:
    return Engine(EngineConfig(block_size=4), runner=Claims(**given))


def places(count: int) -> LogprobColumns:
    return LogprobColumns(
        width=1, token_ids=np.zeros(count, np.int64), values=np.zeros(count, np.float32), ranks=np.ones(count, np.int64)
    )


@pytest.mark.parametrize(
    ("asked", "given", "why"),
    [
        ({"logprobs": 0}, {}, "the runner gave no logprobs for its token"),
        ({"prompt_logprobs": 0}, {}, "the runner gave 0 places of prompt_logprobs, needed are 4"),
        (
            {"prompt_logprobs": 2},
            {"prompt_logprobs": {"a": places(3)}},
            "the runner gave 3 places of prompt_logprobs, needed are 4",
        ),
        (
            {"prompt_logprobs": 2},
            {"prompt_logprobs": {"a": places(5)}},
            "the runner gave 5 places of prompt_logprobs, needed are 4",
        ),
        ({}, {"failed": {"a": "a bit fell over"}}, "a bit fell over"),
    ],
    ids=str,
)
async def test_who_did_not_get_what_it_asked_for_ends_with_the_reason_and_the_others_go_on(
    asked: dict, given: dict, why: str
):
    async with make(**given) as engine:
        beside = engine.generate(PROMPT, greedy(), request_id="a" * 2) if "failed" not in given else None
        with pytest.raises(CallboardError, match=rf"^step \d+ failed for it: {why} \(request a\)$"):
            await engine.complete(PROMPT, greedy(**asked), request_id="a")
        if beside is not None:
            assert [t async for output in beside for t in output.outputs[0].token_ids] == toy_tokens(PROMPT, 8, 100)
        await idle(engine)


async def test_log_probabilities_are_not_missed_where_nobody_asks():
    async with make() as engine:
        assert (await engine.complete(PROMPT, greedy())).finished


async def test_a_failure_of_nobody_in_the_step_ends_the_engine():
    async with make(failed={"nobody": "?"}) as engine:
        with pytest.raises(EngineDeadError, match=r"says of a failure of \['nobody'\] in step \d, not in the plan"):
            await engine.complete(PROMPT, greedy())


@pytest.mark.parametrize(("given", "message"), [(None, "gave None"), ({"a": [7]}, r"gave \{'a': \[7\]\}")], ids=str)
async def test_what_is_no_result_at_all_ends_the_engine_by_name(given: object, message: str):
    class Silent(SimulatedRunner):
        async def execute(self, plan, submitted, grammar=None):
            return given

    async with Engine(runner=Silent()) as engine:
        with pytest.raises(EngineDeadError, match=rf"{message} in step \d, needed is a ModelRunnerOutput"):
            await engine.complete(PROMPT, greedy(), request_id="a")
