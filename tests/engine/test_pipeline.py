"""Pipelines of one's own."""

import pytest

from callboard import ConfigError, Pipeline
from callboard.actors import Actor, Channel


class Doubler(Actor):
    """Sends on twice what it gets."""

    def __init__(self, name: str, out: Channel[int] | None = None) -> None:
        super().__init__(name, sends_to=[] if out is None else [out])
        self.numbers: Channel[int] = self.mailbox.lane("numbers", 4)
        self.out, self.seen = out, []

    async def run(self) -> None:
        async for number in self.numbers:
            self.seen.append(number)
            if self.out is not None:
                await self.out.send(2 * number)
        if self.out is not None:
            self.out.close()


async def test_draining_brings_everything_through_to_the_end():
    last = Doubler("last")
    first = Doubler("first", last.numbers)
    async with Pipeline(last, first) as pipeline:
        for number in range(10):
            await first.numbers.send(number)
        await pipeline.drain()
        assert last.seen == [2 * number for number in range(10)]
        assert [lane.received for lane in pipeline.statistics()["last"] if lane.name == "numbers"] == [10]


def test_a_lane_that_leads_out_of_the_pipeline_is_refused_by_name():
    last = Doubler("last")
    with pytest.raises(ConfigError, match="actor 'first' sends to lane 'numbers' of 'last'"):
        Pipeline(Doubler("first", last.numbers))
