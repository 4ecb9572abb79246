"""What a request asks of the sampler and of the stop rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Literal, cast

import msgspec

from .errors import InvalidRequestError
from .known_names import NamesChecked
from .logit_params import (
    check_logprobs,
    check_penalties,
    check_temperature,
    checked_bias,
    checked_sequences,
    checked_tokens,
    checked_words,
)
from .ranges import TOKEN_LIMIT, of_kind
from .ranges import number as _number
from .ranges import whole as _whole
from .setting_types import shown


class _Parameters(NamesChecked):
    what, error = "parameter", InvalidRequestError


OutputKind = Literal["delta", "cumulative", "final"]

SEED_LIMIT = 2**63

# A stop string beyond any real one is a mistake, and each is looked at for every text.
MOST_STOPS = 1024
MOST_STOP_TEXT = 65_536  # characters, of all together


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True, metaclass=_Parameters):
    """A constraint on the text; exactly one of the first six fields is given.

    Args:
        json_schema: a JSON schema, as an object or as text.
        json_object: True: any JSON object.
        regex: a pattern that the whole text matches; classes like ``\\d`` and ``\\s`` are ASCII.
        grammar: EBNF, its first rule named ``root``.
        choice: the text is one of these.
        structural_tag: free text with constrained parts between tags, as xgrammar describes it.
        max_whitespace: most blanks in a row between the parts of a JSON text, 1 to 64.
        reasoning_end_token_id: the text before this token is free; the constraint begins behind it.

    Lists and objects are copied: what their owner does to them afterwards changes no request.
    """

    json_schema: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None
    structural_tag: dict[str, Any] | str | None = None
    max_whitespace: int = 8
    reasoning_end_token_id: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequestError(f"StructuredOutput takes exactly one constraint, got {given or 'none'}")
        value = getattr(self, given[0])
        if isinstance(value, dict | list):
            with suppress(Exception):  # too deep, or of things that are no JSON: refused where it is written
                msgspec.structs.force_setattr(self, given[0], deepcopy(cast("Any", value)))
        _whole("max_whitespace", self.max_whitespace, 1, 65)
        if self.reasoning_end_token_id is not None:
            _whole("reasoning_end_token_id", self.reasoning_end_token_id, 0, TOKEN_LIMIT)


CONSTRAINTS = ("json_schema", "json_object", "regex", "grammar", "choice", "structural_tag")


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, metaclass=_Parameters):
    """Ends a request whose tail repeats one pattern ``min_count`` times back to back.

    Pattern lengths are in tokens; ``min_pattern_size`` 0 means 1. ``max_pattern_size`` 0, a
    minimum above it, or a count below 2 turns it off. Nothing ends before ``min_tokens``.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 2

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _whole(f"repetition_detection.{name}", getattr(self, name), 0, TOKEN_LIMIT)

    @property
    def is_active(self) -> bool:
        """Whether anything can be found at all."""
        return self.min_count >= 2 and max(self.min_pattern_size, 1) <= self.max_pattern_size


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, metaclass=_Parameters):
    """How to choose tokens and when to stop, in the field's usual names.

    Args:
        n: completions of one prompt, each with a seed of its own where ``seed`` is given.
        temperature: 0 chooses the likeliest token; from 1e-6 to 100 divides the logits. Default 1.0.
        top_p: keeps the likeliest tokens whose probabilities add up to this, (0, 1].
        top_k: keeps this many of the likeliest tokens; 0 or -1 keeps all.
        min_p: keeps tokens at least this fraction as likely as the likeliest, [0, 1].
        seed: makes the request's choices repeatable, whatever runs beside it.
        max_tokens: most tokens to generate, 16 unless given; None, or more than the model's length has room for:
            up to that length, where the request ends with reason "length".
        min_tokens: end and stop tokens are not sampled before this many tokens.
        stop: strings that end the text; not part of it unless ``include_stop_str_in_output``.
        stop_token_ids: token ids that end the request.
        include_stop_str_in_output: the stop string, or the text of the stop token, stays in the text.
        ignore_eos: the model's own end tokens do not end the request.
        presence_penalty, frequency_penalty: taken from the logits of tokens that were generated, once
            and for each time, [-2, 2].
        repetition_penalty: divides positive logits of tokens of prompt and output and multiplies
            negative ones, [1e-6, 1e6]; 1 changes nothing.
        logit_bias: token id -> what is added to its logit, [-100, 100].
        allowed_token_ids: no other token is sampled.
        bad_words: words that are not generated, at the beginning of a text and inside it.
        bad_words_token_ids: the same as token ids; added to what ``bad_words`` gives.
        logprobs: log-probabilities of each output token and of this many of the likeliest at its place,
            of the model's own distribution, before anything above changes it; -1: of all tokens.
        prompt_logprobs: the same for the tokens of the prompt.
        repetition_detection: ends a request whose tail repeats itself, with reason "repetition".
        structured_output: a constraint that the whole text keeps to.
        skip_special_tokens: the text leaves out the tokens that the tokenizer calls special; the ids have them.
        skip_reading_prefix_cache: every token of the prompt is computed, and kept for others;
            always so with ``prompt_logprobs``.
        output_kind: what each RequestOutput carries: what is new, all so far, or only the end.

    Lists are copied to tuples: what their owner does to them afterwards changes no request.

    Raises InvalidRequestError where a value is out of its range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    bad_words_token_ids: Sequence[Sequence[int]] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_detection: RepetitionDetection | None = None
    structured_output: StructuredOutput | None = None
    output_kind: OutputKind = "delta"
    skip_special_tokens: bool = True
    skip_reading_prefix_cache: bool = False

    def __post_init__(self) -> None:
        _whole("n", self.n, 1, TOKEN_LIMIT)
        check_temperature(self.temperature)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequestError("top_p is 0, the limit is above 0 and up to 1")
        _whole("top_k", self.top_k, -1, TOKEN_LIMIT)
        _whole("min_tokens", self.min_tokens, 0, TOKEN_LIMIT)
        if self.seed is not None:
            _whole("seed", self.seed, -SEED_LIMIT, SEED_LIMIT)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, 2**63)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequestError(f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}")
        of_kind("output_kind", self.output_kind, (str,), "'delta', 'cumulative' or 'final'")
        if self.output_kind not in ("delta", "cumulative", "final"):
            raise InvalidRequestError(
                f"output_kind is {shown(self.output_kind)}, known are 'delta', 'cumulative', 'final'"
            )
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "skip_reading_prefix_cache"):
            of_kind(name, getattr(self, name), (bool,), "True or False")
        none = type(None)
        repetition, structured = self.repetition_detection, self.structured_output
        of_kind("repetition_detection", repetition, (RepetitionDetection, none), "a RepetitionDetection or None")
        of_kind("structured_output", structured, (StructuredOutput, none), "a StructuredOutput or None")
        _check_stops(self.stop)
        if not isinstance(self.stop_token_ids, list | tuple | None):
            raise InvalidRequestError(f"stop_token_ids is {shown(self.stop_token_ids)}, needed is a list of token ids")
        for token in self.stop_token_ids or ():
            _whole("stop_token_ids", token, 0, TOKEN_LIMIT)
        check_penalties(self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        check_logprobs("logprobs", self.logprobs)
        check_logprobs("prompt_logprobs", self.prompt_logprobs)
        self._copy_lists()

    def _copy_lists(self) -> None:
        stop, stop_ids = self.stop, self.stop_token_ids
        for name, copy in (
            ("stop", tuple(stop) if isinstance(stop, list) else stop),
            ("stop_token_ids", tuple(stop_ids) if isinstance(stop_ids, list) else stop_ids),
            ("logit_bias", checked_bias(self.logit_bias)),
            ("allowed_token_ids", checked_tokens("allowed_token_ids", self.allowed_token_ids)),
            ("bad_words", checked_words("bad_words", self.bad_words)),
            ("bad_words_token_ids", checked_sequences("bad_words_token_ids", self.bad_words_token_ids)),
        ):
            msgspec.structs.force_setattr(self, name, copy)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0.0

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether tokens that are in the prefix cache need not be computed."""
        return not self.skip_reading_prefix_cache and self.prompt_logprobs is None

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list, in the order given."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


def _check_stops(stop: object) -> None:
    stops = cast("Sequence[Any]", stop if isinstance(stop, list | tuple) else () if stop is None else (stop,))
    if not all(isinstance(one, str) and one for one in stops):
        raise InvalidRequestError(f"stop is {stop!r:.200}, needed is a string that is not empty or a list of such")
    if len(stops) > MOST_STOPS:
        raise InvalidRequestError(f"stop has {len(stops)} strings, limit is {MOST_STOPS}")
    if (length := sum(map(len, stops))) > MOST_STOP_TEXT:
        raise InvalidRequestError(f"stop has {length} characters, limit is {MOST_STOP_TEXT} for all strings together")
