"""A runner of one's own. Its "model" sums up the KV slots of a text, each weighted by its place."""

import anyio

from callboard import Engine, EngineConfig, SamplingParams
from callboard.runner import RunnerInfo
from callboard.scheduler import ModelRunnerOutput

VOCAB = 1000


class OwnRunner:
    def __init__(self, num_kv_blocks=64, block_size=4):
        sizes = {"num_kv_blocks": num_kv_blocks, "block_size": block_size}
        self.info = RunnerInfo(vocab_size=VOCAB, max_model_len=200, weights_id="own", **sizes)
        self._slots, self._texts, self._tables = [0] * (num_kv_blocks + 1) * block_size, {}, {}  # block 0 is never used

    async def submit(self, plan, _grammar=None):  # steps are awaited in their order
        return self.compute(plan)

    def compute(self, plan):
        for name in plan.finished_req_ids | plan.preempted_req_ids:
            self._texts.pop(name, None), self._tables.pop(name, None)
        computed = {}
        for new in plan.scheduled_new_reqs:
            self._texts[new.req_id], self._tables[new.req_id] = list(new.token_ids), list(new.block_ids)
            computed[new.req_id] = new.num_computed_tokens
        held = plan.scheduled_cached_reqs
        for name, blocks, count in zip(held.req_ids, held.new_block_ids, held.num_computed_tokens, strict=True):
            self._tables[name] += blocks or []
            computed[name] = count
        ends = {name: computed[name] + count for name, count in plan.num_scheduled_tokens.items()}
        for name, end in ends.items():  # all writes come before any read: requests may share blocks
            for place in range(computed[name], end):
                self._slots[self._slot(name, place)] = self._texts[name][place]
        sampled = {name: [self._next(name)] for name, end in ends.items() if end == len(self._texts[name])}
        for name, tokens in sampled.items():
            self._texts[name] += tokens
        return ModelRunnerOutput(step=plan.step, sampled_token_ids=sampled)

    def _next(self, name):
        slots = (self._slots[self._slot(name, place)] for place in range(len(self._texts[name])))
        return sum(weight * (token + 1) for weight, token in enumerate(slots, 1)) % VOCAB

    def _slot(self, name, place):
        block, offset = divmod(place, self.info.block_size)
        return self._tables[name][block] * self.info.block_size + offset

    async def aclose(self):
        pass


async def main():
    async with Engine(EngineConfig(block_size=4), runner=OwnRunner()) as engine:
        print((await engine.complete([1, 2, 3], SamplingParams(max_tokens=5))).outputs[0].token_ids)


if __name__ == "__main__":
    anyio.run(main)
