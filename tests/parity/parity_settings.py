"""What the parity tests run: the model, how many tokens of each prompt, and how."""

import anyio

from callboard import Engine, SamplingParams

MODEL = "smollm2"
NEW_TOKENS = 64
GENERATED = (1, 6, 10)  # prompts that transformers also generates step by step
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, output_kind="final")


async def all_at_once(engine: Engine, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[list[int]]:
    """Every prompt's output, all submitted together."""
    tokens: dict[int, list[int]] = {}

    async def one(number: int) -> None:
        tokens[number] = (await engine.complete(prompts[number], params)).outputs[0].token_ids

    async with anyio.create_task_group() as tasks:
        for number in range(len(prompts)):
            tasks.start_soon(one, number)
    engine.check()
    return [tokens[number] for number in range(len(prompts))]
