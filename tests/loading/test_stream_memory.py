"""What a stream keeps: little while its request waits, and no text that nobody will see again."""

import tracemalloc

import pytest
from vocabularies import smollm2

from callboard import SamplingParams
from callboard.pipeline.stream import StreamState

COUNT = 1_000


def kept(make) -> float:
    """Bytes that each of many values keeps alive."""
    make()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        values = [make() for _ in range(COUNT)]
        return (tracemalloc.get_traced_memory()[0] - before) / len(values)
    finally:
        tracemalloc.stop()


def test_a_completion_that_waits_costs_less_than_a_kilobyte():
    params, tokenizer = SamplingParams(), smollm2()
    assert kept(lambda: StreamState("a", params, tokenizer, 0.0)) < 1_000


@pytest.mark.parametrize(("kind", "least", "most"), [("delta", 0, 25), ("cumulative", 25, 400)])
def test_text_that_was_read_is_kept_only_where_it_is_shown_again(kind: str, least: int, most: int):
    state = StreamState("a", SamplingParams(output_kind=kind), smollm2(), 0.0)
    token = max(range(1_000), key=lambda token: len(smollm2().token_bytes(token)))

    def read() -> None:
        for _ in range(8):
            state.push(token, 0.0)
            assert state.take()

    assert least < kept(read) / 8 < most
