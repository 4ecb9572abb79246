"""Made-up traffic: when requests arrive, what their prompts are, and how much they want.

A load is a stream of values, made from a seed and no clock. Whoever plays it waits for each
arrival time, on the real clock or on a virtual one, and submits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec

from ..scheduler.errors import ConfigError
from ..scheduler.setting_types import at_least


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths in tokens with a heavy tail: log-normal, from its mean and standard deviation, cut at both ends."""

    mean: float
    std: float
    least: int = 1
    most: int = 4096

    def __post_init__(self) -> None:
        if not 0.0 < self.mean < math.inf:
            raise ConfigError(f"mean is {self.mean}, needed is a finite number above 0")
        if not 0.0 <= self.std < math.inf:
            raise ConfigError(f"std is {self.std}, needed is a finite number of at least 0")
        at_least("least", self.least, 0)
        at_least("most", self.most, self.least)

    def draw(self, chosen: random.Random) -> int:
        """One length."""
        if not self.std:
            return min(max(round(self.mean), self.least), self.most)
        spread = math.log(1.0 + (self.std / self.mean) ** 2)
        length = chosen.lognormvariate(math.log(self.mean) - spread / 2.0, math.sqrt(spread))
        return min(max(round(length), self.least), self.most)


# The mix of ShareGPT conversations as serving papers use it: Kwon et al. (2023, figure 11 of "Efficient
# Memory Management for Large Language Model Serving with PagedAttention") give means of 161.31 prompt
# and 337.99 output tokens. The spreads are not printed there; the tails of their histograms reach past
# 1,500 and 1,000 tokens, which these standard deviations imitate.
SHAREGPT_PROMPTS = Lengths(mean=161.31, std=300.0, most=2048)
SHAREGPT_OUTPUTS = Lengths(mean=337.99, std=320.0, most=1024)


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a load."""

    number: int  # from 0 on, in order of arrival
    arrival: float  # seconds after the load's start
    prompt_token_ids: list[int]
    max_tokens: int


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A description of traffic; iterating gives its requests in order of arrival, without end.

    Args:
        rate: mean requests a second; infinity: all at once.
        burst: mean requests that arrive at the same moment: geometric, so 1 is a Poisson process
            and more is a Poisson process of groups, as rare as keeps the rate.
        prompts, outputs: their lengths.
        num_prefixes: shared beginnings (system prompts) that requests choose from; 0: none.
        prefix_len: tokens of a shared beginning; it comes before the prompt's own tokens.
        prefix_skew: how unevenly prefixes are chosen: the k-th has weight 1 / k ** skew (Zipf).
        vocab_size: token ids are below it.
        seed: the same seed gives the same load.
    """

    rate: float = math.inf
    burst: float = 1.0
    prompts: Lengths = SHAREGPT_PROMPTS
    outputs: Lengths = SHAREGPT_OUTPUTS
    num_prefixes: int = 0
    prefix_len: int = 0
    prefix_skew: float = 1.0
    vocab_size: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ConfigError(f"rate is {self.rate}, needed is a number above 0")
        if not 1.0 <= self.burst < math.inf:
            raise ConfigError(f"burst is {self.burst}, needed is a finite number of at least 1")
        if not 0.0 <= self.prefix_skew < math.inf:
            raise ConfigError(f"prefix_skew is {self.prefix_skew}, needed is a finite number of at least 0")
        at_least("num_prefixes", self.num_prefixes, 0)
        at_least("prefix_len", self.prefix_len, 0)
        at_least("vocab_size", self.vocab_size, 1)

    def __iter__(self) -> Iterator[LoadRequest]:
        chosen = random.Random(self.seed)  # noqa: S311 - traffic, not secrets
        prefixes = [self._tokens(chosen, self.prefix_len) for _ in range(self.num_prefixes)]
        weights = [1.0 / (place + 1) ** self.prefix_skew for place in range(self.num_prefixes)]
        number, now = 0, 0.0
        while True:
            now += chosen.expovariate(self.rate / self.burst) if self.rate < math.inf else 0.0
            for _ in range(self._group(chosen)):
                prefix = chosen.choices(prefixes, weights)[0] if prefixes else []
                prompt = prefix + self._tokens(chosen, self.prompts.draw(chosen))
                yield LoadRequest(
                    number=number, arrival=now, prompt_token_ids=prompt, max_tokens=self.outputs.draw(chosen)
                )
                number += 1

    def _group(self, chosen: random.Random) -> int:
        """Requests that arrive together: geometric with mean ``burst``."""
        if self.burst == 1.0:
            return 1
        return 1 + int(math.log(1.0 - chosen.random()) / math.log(1.0 - 1.0 / self.burst))

    def _tokens(self, chosen: random.Random, count: int) -> list[int]:
        return chosen.choices(range(self.vocab_size), k=count)
