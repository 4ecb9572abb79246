"""However tokens come and are read: text, ids, log-probabilities and usage are cut at one place."""

from __future__ import annotations

import codecs

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import smollm2, tiny

from callboard import RequestOutput, SamplingParams
from callboard.pipeline.stream import StreamState
from callboard.pipeline.tokenizer import Tokenizer
from callboard.scheduler import Finished, FinishReason
from callboard.scheduler.logprobs import LogprobColumns

KINDS = pytest.mark.parametrize("kind", ["gpt-2", "spm", "smollm2"])


def vocabulary(kind: str) -> Tokenizer:
    return smollm2() if kind == "smollm2" else tiny(kind)


def certain_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of a beginning of a stream, without what may still become a character."""
    data = tokenizer.strip_first(tokenizer.join_bytes(ids, True))
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def plain_cut(tokenizer: Tokenizer, ids: list[int], params: SamplingParams) -> tuple[str, int, str | None]:
    """The text, the number of tokens and the stop string, by looking at the whole text."""
    lengths = [len(certain_text(tokenizer, ids[:count])) for count in range(len(ids) + 1)]
    text = tokenizer.decode(ids)
    searched = lengths[min(params.min_tokens, len(ids))]
    for end in range(searched + 1, lengths[-1] + 1):
        for stop in params.stop_strings:
            if text[:end].endswith(stop):
                kept = end if params.include_stop_str_in_output else end - len(stop)
                return text[:kept], next(count for count, length in enumerate(lengths) if length >= end), stop
    return text, len(ids), None


def places(tokens: list[int]) -> LogprobColumns:
    values = -np.arange(len(tokens), dtype=np.float32)
    return LogprobColumns(width=1, token_ids=np.array(tokens), values=values, ranks=np.ones(len(tokens), np.int64))


def pushed(state: StreamState, token: int) -> str | None:
    """One token comes, as the board brings it."""
    state.push(token, 0.0)
    return state.search() if state.searches else None


def play(tokenizer: Tokenizer, steps: list[tuple[list[int], bool]], params: SamplingParams) -> list[RequestOutput]:
    """Each step brings some tokens; behind some of them the reader comes."""
    state = StreamState("a", params, tokenizer, 0.0)
    outputs: list[RequestOutput] = []
    for tokens, reads in steps:
        state.add_logprobs(places(tokens))
        stop = next((found for token in tokens if (found := pushed(state, token))), None)
        if stop is not None:
            state.finish(Finished(reason=FinishReason.STOP, stop_reason=stop), 0.0)
            break
        if reads and (output := state.take()):
            outputs.append(output)
    if not state.ended:
        state.finish(Finished(reason=FinishReason.LENGTH), 0.0)
    return [*outputs, *iter(state.take, None)]


@st.composite
def streams(draw: st.DrawFn, tokenizer: Tokenizer) -> tuple[list[tuple[list[int], bool]], SamplingParams]:
    """Tokens in steps, and stop strings that are likely to be in their text."""
    any_token = st.integers(0, tokenizer.vocab_size - 1)
    steps = draw(st.lists(st.tuples(st.lists(any_token, min_size=1, max_size=3), st.booleans()), max_size=8))
    ids = [token for tokens, _ in steps for token in tokens]
    text = tokenizer.decode(ids).replace("\ufffd", "")
    pieces = st.tuples(st.integers(0, len(text)), st.integers(1, 5)).map(lambda at: text[at[0] : at[0] + at[1]])
    stops = draw(st.lists(st.one_of(pieces, st.text("ab ", min_size=1, max_size=3)), min_size=1, max_size=3))
    params = SamplingParams(
        stop=[stop for stop in stops if stop] or ["x"],
        min_tokens=draw(st.integers(0, 3)),
        include_stop_str_in_output=draw(st.booleans()),
        logprobs=0,
        output_kind=draw(st.sampled_from(["delta", "cumulative", "final"])),
    )
    return steps, params


@KINDS
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_random_streams_are_cut_where_their_whole_text_would_be(kind: str, data: st.DataObject):
    tokenizer = vocabulary(kind)
    steps, params = data.draw(streams(tokenizer))
    ids = [token for tokens, _ in steps for token in tokens]
    text, count, stop = plain_cut(tokenizer, ids, params)
    outputs = play(tokenizer, steps, params)
    completions = [output.outputs[0] for output in outputs]
    if params.output_kind != "delta":
        completions = completions[-1:]
    assert "".join(completion.text for completion in completions) == text
    assert [token for completion in completions for token in completion.token_ids] == ids[:count]
    told = [place for completion in completions for place in completion.logprobs or []]
    assert [next(iter(place)) for place in told] == ids[:count]
    assert outputs[-1].usage.completion_tokens == count
    assert completions[-1].stop_reason == stop
    assert completions[-1].cumulative_logprob == sum(
        place[token].logprob for token, place in zip(ids, told, strict=False)
    )


@KINDS
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_every_output_so_far_is_a_beginning_of_the_text(kind: str, data: st.DataObject):
    tokenizer = vocabulary(kind)
    steps, params = data.draw(streams(tokenizer))
    outputs = play(tokenizer, [(tokens, True) for tokens, _ in steps], params)
    ids = [token for tokens, _ in steps for token in tokens]
    text, _, _ = plain_cut(tokenizer, ids, params)
    shown = ""
    for output in outputs:
        new = output.outputs[0].text
        shown = shown + new if params.output_kind == "delta" else new
        assert text.startswith(shown)
    assert shown == text


def test_a_stop_string_over_the_borders_of_characters_and_tokens_cuts_all_alike():
    tokenizer = tiny("gpt-2")
    from vocabularies import byte_ids

    ids = byte_ids(tokenizer, "a😀é!é?".encode())
    for include, text in ((False, "a😀"), (True, "a😀é!")):
        params = SamplingParams(stop="é!", include_stop_str_in_output=include, logprobs=0)
        outputs = play(tokenizer, [([token], True) for token in ids], params)
        assert "".join(output.outputs[0].text for output in outputs) == text
        assert [token for output in outputs for token in output.outputs[0].token_ids] == ids[:8]
        assert sum(len(output.outputs[0].logprobs or []) for output in outputs) == 8
        assert outputs[-1].outputs[0].finish_reason == "stop"
