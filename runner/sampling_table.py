"""How each running request is sampled: the columns that the sampler reads."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from ..scheduler.logit_params import ALL_TOKENS
from ..scheduler.params import SamplingParams
from ..scheduler.plan import IntArray, NewRequestData
from .bad_words import BadWords
from .token_counts import TokenCounts

# What a row may ask for, as bits; a step passes over what none of its rows asks for.
ALLOWED, BAD_WORDS, BIAS, PENALTIES, MIN_P, LOGPROBS, PROMPT_LOGPROBS, GRAMMAR = (1 << bit for bit in range(8))


class SamplingTable:
    """One row for each running request, filled at each admission from what is known of it then.

    Columns:
        temperature, top_p: float32 [rows]; top_k: int64 [rows], 0 keeps all.
        log_min_p: float32 [rows], -inf keeps all.
        seed: uint64 [rows], the key of the row's random numbers.
        min_tokens: int64 [rows]; end_ids: for each row the tokens that may not come before.
        features: int64 [rows], bits of what else it asks for.
        presence, frequency, repetition: float32 [rows], penalties; ``counts``: of the tokens they are for.
        bias_ids, bias_values, allowed_ids, bad_words: for the rows that have them.
        num_logprobs, num_prompt_logprobs: int64 [rows], how many of the likeliest are told beside a token
            of the output, of the prompt; for the rows that ask for it.

    Args:
        vocab_size: token ids that may be sampled are below it.
        width: of the logits.
        random_base: makes requests without a seed differ from run to run, and not from a
            preemption to the next.
    """

    def __init__(
        self,
        *,
        rows: int,
        max_tokens: int,
        vocab_size: int,
        width: int,
        eos_token_ids: tuple[int, ...],
        random_base: int,
    ) -> None:
        self.temperature = np.zeros(rows, np.float32)
        self.top_p = np.ones(rows, np.float32)
        self.top_k = np.zeros(rows, np.int64)
        self.log_min_p = np.full(rows, -np.inf, np.float32)
        self.seed = np.zeros(rows, np.uint64)
        self.min_tokens = np.zeros(rows, np.int64)
        self.end_ids: list[IntArray] = [np.zeros(0, np.int64)] * rows
        self.features = np.zeros(rows, np.int64)
        self.presence = np.zeros(rows, np.float32)
        self.frequency = np.zeros(rows, np.float32)
        self.repetition = np.ones(rows, np.float32)
        self.counts = TokenCounts(rows, max_tokens, vocab_size)
        self.bias_ids: dict[int, IntArray] = {}
        self.bias_values: dict[int, np.ndarray] = {}
        self.allowed_ids: dict[int, IntArray] = {}
        self.bad_words: dict[int, BadWords] = {}
        self.num_logprobs = np.zeros(rows, np.int64)
        self.num_prompt_logprobs = np.zeros(rows, np.int64)
        self._vocab_size, self._width, self._max_tokens = vocab_size, width, max_tokens
        self._eos_token_ids = eos_token_ids
        self._random_base = random_base.to_bytes(8, "little")

    def fill(self, new: NewRequestData) -> None:
        """Take in a request, over whatever the row held before."""
        row, params = new.row, new.sampling_params
        self.features[row] = 0 if params.structured_output is None else GRAMMAR
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.top_k[row] = max(params.top_k, 0)
        self.seed[row] = self._seed_of(new.req_id) if params.seed is None else params.seed % 2**64
        self._fill_ends(row, params)
        self._fill_min_p(row, params.min_p)
        self._fill_lists(row, params)
        self._fill_penalties(new)
        self._fill_logprobs(new)

    def asking(self, rows: IntArray, feature: int) -> IntArray:
        """Places in ``rows`` whose row asks for the feature."""
        return np.nonzero(self.features[rows] & feature)[0]

    def known_ids(self, tokens: object) -> IntArray:
        """Token ids as an array, without those that are never sampled anyway."""
        ids = np.array(tokens, np.int64)
        return ids[ids < self._vocab_size]

    def _fill_ends(self, row: int, params: SamplingParams) -> None:
        self.min_tokens[row] = params.min_tokens
        ends = [] if params.ignore_eos else list(self._eos_token_ids)
        self.end_ids[row] = self.known_ids([*ends, *(params.stop_token_ids or ())])

    def _fill_min_p(self, row: int, min_p: float) -> None:
        self.log_min_p[row] = np.log(min_p) if min_p > 0 else -np.inf
        if min_p > 0:
            self.features[row] |= MIN_P

    def _fill_lists(self, row: int, params: SamplingParams) -> None:
        for held in (self.bias_ids, self.bias_values, self.allowed_ids, self.bad_words):
            held.pop(row, None)
        if params.logit_bias:
            bias = {token: value for token, value in params.logit_bias.items() if token < self._vocab_size}
            self.bias_ids[row] = np.array(list(bias), np.int64)
            self.bias_values[row] = np.array(list(bias.values()), np.float32)
            self.features[row] |= BIAS
        if params.allowed_token_ids:
            self.allowed_ids[row] = self.known_ids(sorted(set(params.allowed_token_ids)))
            self.features[row] |= ALLOWED
        if params.bad_words_token_ids:
            self.bad_words[row] = BadWords(params.bad_words_token_ids, self._vocab_size, self._max_tokens)
            self.features[row] |= BAD_WORDS

    def _fill_penalties(self, new: NewRequestData) -> None:
        row, params = new.row, new.sampling_params
        self.presence[row] = params.presence_penalty
        self.frequency[row] = params.frequency_penalty
        self.repetition[row] = params.repetition_penalty
        if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
            tokens = np.array(new.token_ids, np.int64)
            self.counts.fill(row, tokens[: new.num_prompt_tokens], tokens[new.num_prompt_tokens :])
            self.features[row] |= PENALTIES
        else:
            self.counts.clear(row)

    def _fill_logprobs(self, new: NewRequestData) -> None:
        row, params = new.row, new.sampling_params
        if params.logprobs is not None:
            self.num_logprobs[row] = self._count_of(params.logprobs)
            self.features[row] |= LOGPROBS
        # Who has outputs has been told of the prompt before it was preempted.
        if params.prompt_logprobs is not None and len(new.token_ids) == new.num_prompt_tokens:
            self.num_prompt_logprobs[row] = self._count_of(params.prompt_logprobs)
            self.features[row] |= PROMPT_LOGPROBS

    def _count_of(self, logprobs: int) -> int:
        return self._width if logprobs == ALL_TOKENS else min(logprobs, self._width)

    def _seed_of(self, req_id: str) -> int:
        return int.from_bytes(blake2b(req_id.encode(), key=self._random_base, digest_size=8).digest(), "little")
