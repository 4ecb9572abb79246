"""A scheduling policy of one's own: short prompts first, and nobody waits for ever.

python examples/shortest_first.py
"""

from bisect import bisect_left, insort

import anyio

from callboard import Engine, EngineConfig, SamplingParams
from callboard.runner import SimulatedRunner
from callboard.scheduler import FCFSPolicy

PATIENCE = 500.0  # tokens of prompt that a second of waiting outweighs


class ShortestFirst(FCFSPolicy):
    """Waiting requests by length, less what they have waited; victims as under FCFS.

    All grow older at the same rate, so who comes first never changes: one sorted list will do.
    """

    def __init__(self):
        self._queue = []

    def add(self, state):
        insort(self._queue, self._entry(state))

    requeue = add

    def remove(self, state):
        del self._queue[bisect_left(self._queue, self._entry(state))]

    def candidates(self, limit, _now):
        return [state for _, _, state in self._queue[:limit]]

    def __len__(self):
        return len(self._queue)

    def __iter__(self):
        return (state for _, _, state in self._queue)

    def _entry(self, state):
        length, arrived = len(state.request.prompt_token_ids), state.request.arrival_time
        return length + PATIENCE * arrived, state.request_id, state


async def main():
    runner = SimulatedRunner(vocab_size=1000, num_kv_blocks=100, max_model_len=1000)
    config = EngineConfig(policy=ShortestFirst(), max_num_running_reqs=1)
    async with Engine(config, runner=runner) as engine, anyio.create_task_group() as tasks:
        events = engine.events()
        for length in (400, 30, 200, 5):
            tasks.start_soon(engine.complete, [7] * length, SamplingParams(max_tokens=4))
    print("admitted:", *[event.request_id async for event in events if event.kind == "SCHEDULED"])


if __name__ == "__main__":
    anyio.run(main)
