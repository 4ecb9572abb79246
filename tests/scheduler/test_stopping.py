"""How requests end: rules, their order, aborts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from play import E, Play

from callboard.scheduler import Finished, FinishReason, ModelRunnerOutput, Request


def _ended(
    sampled: int | list[int], prompt: int = 10, **options: Any
) -> tuple[str | None, int | str | None, list[int]]:
    """Reason, stop reason and tokens of a request after one step."""
    play = Play(max_model_len=options.pop("max_model_len", 100))
    play.add("a", prompt, **options)
    play.step({"a": sampled})
    end = play.ends.get("a")
    return (str(end.reason) if end else None, end.stop_reason if end else None, play.tokens["a"])


def test_an_end_token_that_is_also_the_last_permitted_token_is_a_stop():
    assert _ended(E, max_tokens=1) == ("stop", None, [E])


def test_a_stop_token_names_itself():
    assert _ended(9, stop_token_ids=[8, 9]) == ("stop", 9, [9])


def test_a_stop_token_that_is_also_the_last_permitted_token_is_a_stop():
    assert _ended(9, stop_token_ids=[9], max_tokens=1) == ("stop", 9, [9])


def test_an_end_token_that_is_also_a_stop_token_is_an_end_token():
    assert _ended(E, stop_token_ids=[E]) == ("stop", None, [E])


def test_an_end_token_that_is_ignored_is_a_token_like_others():
    assert _ended([E, 5], ignore_eos=True) == (None, None, [E, 5])


def test_an_ignored_end_token_in_the_stop_list_stops_and_what_follows_is_cut():
    assert _ended([E, 5], ignore_eos=True, stop_token_ids=[E]) == ("stop", E, [E])


def test_tokens_after_the_length_limit_are_cut():
    assert _ended([5, 6, 7, 8], max_tokens=3) == ("length", None, [5, 6, 7])


@pytest.mark.parametrize("token", [E, 9])
def test_an_end_before_min_tokens_is_an_end_since_the_sampler_should_not_have_given_it(token: int):
    reason, _, tokens = _ended(token, min_tokens=5, stop_token_ids=[9])
    assert (reason, tokens) == ("stop", [token])


def test_min_tokens_does_not_hold_up_the_model_length():
    assert _ended([5, 6], max_model_len=12, min_tokens=50) == ("length", None, [5, 6])


def test_min_tokens_does_not_hold_up_max_tokens():
    assert _ended([5, 6, 7], min_tokens=2, max_tokens=2) == ("length", None, [5, 6])


@pytest.mark.parametrize("prompt", [4, 15])
@pytest.mark.parametrize("max_tokens", [None, 1, 2**31 - 1, 2**63 - 1])
def test_max_tokens_is_clipped_to_the_model_length_and_sizes_nothing(prompt: int, max_tokens: int | None):
    play = Play(blocks=8, block_size=4, max_model_len=16)
    play.add("a", prompt, max_tokens=max_tokens)
    play.step()
    assert play.free_blocks() >= 8 - -(-prompt // 4)
    while "a" not in play.ends:
        play.step()
    assert len(play.tokens["a"]) == min(max_tokens or 99, 16 - prompt)
    assert play.reason("a") == "length"


def test_a_request_that_fills_the_pool_ends_by_length_instead_of_waiting_for_ever():
    play = Play(blocks=3)
    play.add("a", 40, max_tokens=50)
    plans = play.until_done()
    assert play.reason("a") == "length"
    assert len(play.tokens["a"]) == 9  # 48 slots, and a last token that needs none
    assert sum(plan.total_num_scheduled_tokens for plan in plans) == 48
    assert play.scheduler.statistics().num_preemptions == 0


def test_two_requests_that_would_each_fill_the_pool_both_end():
    play = Play(blocks=2, block_size=4)
    play.add("a", 8, max_tokens=4)
    play.add("b", 8, max_tokens=4)
    assert len(play.until_done()) == 2
    assert play.tokens == {"a": [7], "b": [7]}
    assert play.reason("a") == play.reason("b") == "length"


class EndsAfterRun:
    """A rule of a user: three equal tokens in a row."""

    def applies_to(self, request: Request) -> bool:
        return request.request_id.startswith("watched")

    def check(self, request: Request, output_token_ids: Sequence[int]) -> Finished | None:
        last = list(output_token_ids[-3:])
        same = len(last) == 3 and len(set(last)) == 1
        return Finished(reason=FinishReason.REPETITION, stop_reason="run") if same else None


def test_a_rule_of_the_user_ends_the_requests_that_it_wants_to_see():
    play = Play(rules=[EndsAfterRun()])
    play.add("watched", 10)
    play.add("free", 10)
    play.steps(5)
    assert play.tokens == {"watched": [7] * 3, "free": [7] * 5}
    assert play.ends["watched"] == Finished(reason=FinishReason.REPETITION, stop_reason="run")


def test_a_stop_token_comes_before_a_rule_of_the_user():
    play = Play(rules=[EndsAfterRun()])
    play.add("watched", 10, stop_token_ids=[6])
    play.step({"watched": [6, 6, 6]})
    assert play.ends["watched"] == Finished(reason=FinishReason.STOP, stop_reason=6)


def test_a_rule_of_the_user_comes_before_length():
    play = Play(rules=[EndsAfterRun()])
    play.add("watched", 10, max_tokens=3)
    play.steps(3)
    assert play.ends["watched"] == Finished(reason=FinishReason.REPETITION, stop_reason="run")


def test_an_abort_returns_the_ids_that_were_alive_and_is_told_to_the_runner_once():
    play = Play(max_num_running_reqs=1)
    play.add("a", 10)
    play.step()
    play.add("d", 10)
    assert play.scheduler.abort(["a", "zz", "d"]) == ["a", "d"]
    assert play.scheduler.abort("a") == []
    assert (play.scheduler.num_running, play.scheduler.num_waiting) == (0, 0)
    assert play.plan().finished_req_ids == {"a", "d"}
    assert play.plan().finished_req_ids == set()


def test_an_abort_that_names_a_request_twice_ends_it_once():
    play = Play(blocks=4)
    play.add("a", 10)
    play.add("b", 10)
    play.step()
    assert play.scheduler.abort(["a", "b", "a"]) == ["a", "b"]
    play.check()
    assert play.free_blocks() == 4


def test_after_an_abort_of_all_one_empty_plan_carries_the_ids():
    play = Play()
    play.add("a", 10)
    play.add("b", 10)
    play.step()
    play.scheduler.abort(["a", "b"])
    assert play.scheduler.num_unfinished == 0
    plan = play.plan()
    assert (plan.is_empty, plan.total_num_scheduled_tokens, plan.finished_req_ids) == (False, 0, {"a", "b"})
    assert play.plan().is_empty


def test_an_aborted_request_has_one_end():
    play = Play()
    play.add("a", 10, max_tokens=1)
    plan = play.plan()
    play.scheduler.abort("a")
    assert play.apply(plan).finished == {"a": Finished(reason=FinishReason.ABORT)}
    assert play.scheduler.take_outputs() is None


def test_a_result_is_a_column_in_the_order_of_the_plan_or_lists_by_request():
    for result in (
        {"token_ids": np.array([5, 6])},
        {"sampled_token_ids": {"c": [6], "a": [5]}},
    ):
        play = Play(max_num_scheduled_tokens=30)
        for name, count in {"a": 10, "c": 10, "half": 20}.items():
            play.add(name, count)
        plan = play.plan()
        outputs = play.scheduler.update_from_output(plan, ModelRunnerOutput(step=plan.step, **result), 0.0)
        assert {output.request_id: output.new_token_ids for output in outputs} == {"a": [5], "c": [6]}


def test_outputs_can_be_read_by_request():
    play = Play()
    play.add("a", 10, max_tokens=2)
    play.add("b", 10)
    play.step({"a": [5, 6], "b": 8})
    a, b = play.last_outputs["a"], play.last_outputs["b"]
    assert (a.new_token_ids, a.finish_reason, a.num_cached_tokens) == ([5, 6], "length", 0)
    assert (b.new_token_ids, b.finish_reason) == ([8], None)
    assert [output.request_id for output in play.last_outputs] == ["a", "b"]
