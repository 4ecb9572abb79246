"""Pipeline stages of one's own: a stage that asks the engine, and one that sorts its answers out."""

import anyio

from callboard import Engine, EngineConfig, Pipeline, SamplingParams
from callboard.actors import Actor
from callboard.runner import SimulatedRunner


class Judge(Actor):
    """Keeps answers that are long enough."""

    def __init__(self):
        super().__init__("judge")
        self.answers = self.mailbox.lane("answers", 4)
        self.kept = []

    async def run(self):
        async for answer in self.answers:  # ends when all that send to this lane have ended
            if len(answer.outputs[0].token_ids) >= 8:
                self.kept.append(answer.request_id)


class Asker(Actor):
    """Asks the engine, and hands each answer on; it waits while the judge's lane is full."""

    def __init__(self, engine, answers):
        super().__init__("asker", sends_to=[answers])
        self.questions = self.mailbox.lane("questions", 4)
        self._engine, self._answers = engine, answers

    async def run(self):
        async for name, prompt, count in self.questions:
            params = SamplingParams(temperature=0, max_tokens=count)
            await self.send(self._answers, await self._engine.complete(prompt, params, request_id=name))


async def main():
    runner = SimulatedRunner(vocab_size=1000, num_kv_blocks=100)
    async with Engine(EngineConfig(), runner=runner) as engine:
        judge = Judge()
        asker = Asker(engine, judge.answers)
        async with Pipeline(judge, asker) as pipeline:  # receivers first; refuses cycles and loose ends
            for number, count in enumerate((4, 8, 6, 12)):
                await asker.questions.send((f"question {number}", [1, 2, 3], count))
            await pipeline.drain()
        print("kept:", *judge.kept, sep="\n")


if __name__ == "__main__":
    anyio.run(main)
