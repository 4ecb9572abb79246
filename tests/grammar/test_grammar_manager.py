"""The manager of masks: which mask belongs to which request and place, with drafts, resets and late results."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from small_grammars import END, THOUGHT, VOCABULARY, fill, ids, matcher

from callboard.runner.grammar_manager import NO_DRAFT, GrammarManager
from callboard.runner.mask_words import allowed_tokens, masks_of_samples
from callboard.scheduler import GrammarOutput, ModelRunnerOutput, NewRequestData, SamplingParams, SchedulerOutput
from callboard.scheduler.errors import BooksError

EVERY = list(range(VOCABULARY.width))
DIGITS = ids("0123456789")


def make(**matchers) -> GrammarManager:
    manager = GrammarManager(VOCABULARY.width, VOCABULARY.stop_token_ids, fill)
    for name, one in matchers.items():
        manager.add(name, one)
    return manager


def row_of(name: str) -> int:
    """A row for each name, in every step the same."""
    return len(name) * 26 + ord(name[0]) - ord("a")


def plan(step: int, epoch: int = 1, new: dict[str, list[int]] | None = None, drafts=None, **positions: int):
    """A step that samples for these requests; ``new`` ones are admitted with these outputs."""
    admitted = [
        NewRequestData(
            req_id=name, row=row, token_ids=[9, *outputs], num_prompt_tokens=1, block_ids=[1], num_computed_tokens=0,
            sampling_params=SamplingParams(),
        )
        for name, outputs in (new or {}).items()
        for row in [row_of(name)]
    ]  # fmt: skip
    count = len(positions)
    return SchedulerOutput(
        step=step,
        req_ids=tuple(positions),
        rows=np.array([row_of(name) for name in positions], np.int64),
        epochs=np.full(count, epoch),
        num_tokens=np.ones(count, np.int64),
        num_computed=np.ones(count, np.int64),
        num_outputs=np.array(list(positions.values()), np.int64),
        samples=np.ones(count, np.bool_),
        scheduled_new_reqs=admitted,
        scheduled_spec_decode_tokens=drafts or {},
    )


def result(step: int, **tokens: list[int]) -> ModelRunnerOutput:
    return ModelRunnerOutput(step=step, sampled_token_ids=tokens)


def rows(masks: GrammarOutput) -> dict[tuple[str, int], list[int]]:
    """What each row allows."""
    words = np.frombuffer(masks.bitmask, np.uint32).reshape(len(masks.req_ids), masks.width)
    places = zip(masks.req_ids, masks.positions, words, strict=True)
    return {(name, position): allowed_tokens(row, VOCABULARY.width).tolist() for name, position, row in places}


def planned(manager: GrammarManager, step: SchedulerOutput) -> list[GrammarOutput]:
    """The masks that a plan brings at once."""
    manager.plan(step)
    return manager.take_masks()


def only_masks(manager: GrammarManager) -> dict[tuple[str, int], list[int]]:
    (masks,) = manager.take_masks()
    return rows(masks)


def test_masks_of_a_batch_are_each_requests_own():
    manager = make(a=matcher(regex="x+"), b=matcher(regex="[0-9]"), c=matcher(choice=["y"]))
    manager.plan(plan(1, new={"a": [], "b": [], "c": []}, a=0, free=0, b=0, c=0))
    assert only_masks(manager) == {("a", 0): ids("x"), ("b", 0): DIGITS, ("c", 0): ids("y")}


def test_the_mask_of_a_step_waits_for_the_tokens_of_the_step_before_and_of_no_other():
    manager = make(a=matcher(regex="ab*c"), b=matcher(regex="xy"))
    manager.plan(plan(1, new={"a": []}, a=0))
    assert only_masks(manager) == {("a", 0): ids("a")}
    manager.plan(plan(2, a=1))
    manager.plan(plan(3, new={"b": []}, b=0))  # in order, though it could be made
    assert manager.take_masks() == []
    manager.result(plan(1, a=0), result(1, a=ids("a")))
    second, third = manager.take_masks()
    assert (second.step, rows(second)) == (2, {("a", 1): sorted(ids("bc"))})
    assert (third.step, rows(third)) == (3, {("b", 0): ids("x")})


def test_only_an_end_may_follow_a_complete_text_and_nothing_is_asked_behind_it():
    manager = make(a=matcher(regex="[0-9]{2}"))
    found = planned(manager, plan(1, new={"a": []}, a=0))
    for position, tokens in enumerate((ids("1"), ids("2"), [END], ids("7"))):  # the last was under way at the end
        manager.plan(plan(position + 2, a=position + 1))
        manager.result(plan(position + 1, a=position), result(position + 1, a=tokens))
        found += manager.take_masks()
    assert [rows(masks) for masks in found] == [{("a", 0): DIGITS}, {("a", 1): DIGITS}, {("a", 2): [END]}, {}, {}]
    assert manager.take_refused() == {}
    manager.check()


def test_a_token_against_the_mask_ends_its_request_only_and_is_remembered():
    manager = make(a=matcher(regex="x+"), b=matcher(regex="[0-9]+"))
    planned(manager, plan(1, new={"a": [], "b": []}, a=0, b=0))
    manager.plan(plan(2, a=1, b=1))
    manager.result(plan(1, a=0, b=0), result(1, a=ids("q"), b=ids("5")))
    refused = manager.take_broken()
    assert list(refused) == ["a"]
    assert "step 1 chose token" in refused["a"]
    assert set(rows(manager.take_masks()[-1])) == {("b", 1)}
    with pytest.raises(BooksError, match="1 tokens were chosen that their grammars forbid"):
        manager.check()


def test_a_preempted_request_goes_back_to_what_it_kept_and_late_results_are_dropped():
    manager = make(a=matcher(regex="abcd"))
    planned(manager, plan(1, new={"a": []}, a=0))
    manager.plan(plan(2, a=1))
    manager.plan(plan(3, a=2))
    for step in (1, 2):
        manager.result(plan(step, a=step - 1), result(step, a=ids("ab"[step - 1])))
        assert set(only_masks(manager)) == {("a", step)}
    manager.plan(plan(4, epoch=2, new={"a": ids("a")}, a=1))  # the second token came too late to be kept
    assert only_masks(manager) == {("a", 1): ids("b")}
    manager.result(plan(3, a=2), result(3, a=ids("c")))
    manager.result(plan(4, epoch=2, a=1), result(4, a=ids("b")))
    manager.plan(plan(5, epoch=2, a=2))
    assert only_masks(manager) == {("a", 2): ids("c")}
    assert manager.statistics().num_rolled_back == 1
    manager.check()


def test_a_new_request_of_an_old_name_gets_nothing_of_the_old_one():
    manager = make(a=matcher(regex="ab"))
    manager.plan(plan(1, new={"a": []}, a=0))
    manager.plan(plan(2, a=1))
    manager.take_masks()
    manager.drop(["a"])
    manager.add("a", matcher(regex="xyz"))
    manager.result(plan(1, a=0), result(1, a=ids("a")))
    assert rows(manager.take_masks()[0]) == {}
    manager.plan(plan(3, epoch=2, new={"a": []}, a=0))
    assert only_masks(manager) == {("a", 0): ids("x")}


# --- drafts: several places of a request in one step


def test_drafts_have_a_row_each_and_leave_the_request_where_it_is():
    drafts = {"a": ids("bc"), "b": ids("12")}
    manager = make(a=matcher(regex="abcd"), b=matcher(regex="[0-9]{3}"))
    planned(manager, plan(1, new={"a": [], "b": []}, a=0, b=0))
    manager.result(plan(1, a=0, b=0), result(1, a=ids("a"), b=ids("0")))
    manager.plan(plan(2, drafts=drafts, a=1, b=1))
    wanted = {
        ("a", 1): ids("b"), ("a", 2): ids("c"), ("a", 3): ids("d"),
        ("b", 1): DIGITS, ("b", 2): DIGITS, ("b", 3): [END],
    }  # fmt: skip
    assert only_masks(manager) == wanted
    manager.result(plan(2, a=1, b=1), result(2, a=ids("bcd"), b=ids("1")))  # all accepted; the first, and no more
    manager.plan(plan(3, a=4, b=2))
    assert only_masks(manager) == {("a", 4): [END], ("b", 2): DIGITS}


def test_rows_behind_a_draft_that_ends_the_text_that_is_refused_or_that_is_not_known():
    manager = make(a=matcher(regex="[0-9]"), b=matcher(regex="[0-9]{3}"), c=matcher(regex="[0-9]{4}"))
    drafts = {"a": [*ids("1"), END, *ids("7")], "b": ids("1zz"), "c": [*ids("1"), NO_DRAFT, NO_DRAFT]}
    manager.plan(plan(1, new={"a": [], "b": [], "c": []}, drafts=drafts, a=0, b=0, c=0))
    found = only_masks(manager)
    assert [found["a", i] for i in range(4)] == [DIGITS, [END], EVERY, EVERY]
    assert [found["b", i] for i in range(4)] == [DIGITS, DIGITS, DIGITS, DIGITS]
    assert [found["c", i] for i in range(4)] == [DIGITS, DIGITS, EVERY, EVERY]
    manager.check()
    assert manager.take_refused() == {}


def test_drafts_are_cut_to_what_the_grammar_takes_and_nothing_is_changed_by_asking():
    manager = make(a=matcher(regex="[0-9]{2}x"))
    manager.plan(plan(1, new={"a": []}, a=0))
    for drafts, valid in ((ids("12x"), 3), (ids("1x"), 1), (ids("x"), 0), ([*ids("12"), NO_DRAFT, *ids("x")], 2)):
        assert manager.valid_drafts("a", drafts) == drafts[:valid]
        assert manager.valid_drafts("a", [*ids("12x"), END, *ids("9")]) == [*ids("12x"), END]
    assert only_masks(manager) == {("a", 0): DIGITS}


def test_the_token_that_ends_the_reasoning_constrains_what_follows_in_the_same_step():
    manager = make(a=matcher(reasoning_end=THOUGHT, regex="[0-9]"))
    manager.plan(plan(1, new={"a": []}, drafts={"a": [*ids("z"), THOUGHT, *ids("4")]}, a=0))
    found = only_masks(manager)
    free = [token for token in EVERY if token != END]
    assert [found["a", i] for i in range(4)] == [free, free, DIGITS, [END]]
    manager.result(plan(1, a=0), result(1, a=[*ids("z"), THOUGHT]))
    manager.plan(plan(2, a=2))
    assert only_masks(manager) == {("a", 2): DIGITS}
    manager.plan(plan(3, epoch=2, new={"a": ids("z")}, a=1))  # preempted before the end of its reasoning was kept
    manager.result(plan(2, a=2), result(2, a=ids("5")))
    assert only_masks(manager) == {("a", 1): free}


def test_a_request_whose_masks_take_too_long_ends_and_its_neighbours_go_on():
    times = {"now": 0.0}
    slow = matcher(regex="x+")
    slow.number = 7

    def sluggish(matchers, bitmask, places) -> None:
        fill(matchers, bitmask, places)
        times["now"] += sum(1.0 if one is slow.native else 0.01 for one in matchers)

    manager = GrammarManager(
        VOCABULARY.width, VOCABULARY.stop_token_ids, sluggish, mask_seconds=0.5, clock=lambda: times["now"]
    )
    manager.add("a", slow)
    manager.add("b", matcher(regex="[0-9]+"))
    assert set(rows(planned(manager, plan(1, new={"a": [], "b": []}, a=0, b=0))[0])) == {("a", 0), ("b", 0)}
    assert manager.take_refused() == {"a": "a mask of its grammar takes 1.000 s, limit is 0.5 s (request a)"}
    assert manager.take_numbers() == {"a": 7}
    assert manager.take_numbers() == {}
    manager.result(plan(1, a=0, b=0), result(1, a=ids("x"), b=ids("5")))
    assert rows(planned(manager, plan(2, a=1, b=1))[0]) == {("b", 1): [END, *DIGITS]}
    manager.check()


def test_a_grammar_that_leaves_no_token_ends_its_request_and_is_no_fault_of_the_runner():
    manager = make(a=matcher(grammar='root ::= "a" dead\ndead ::= dead "b"'), b=matcher(regex="[0-9]+"))
    assert rows(planned(manager, plan(1, new={"a": [], "b": []}, a=0, b=0))[0]) == {
        ("a", 0): ids("a"),
        ("b", 0): DIGITS,
    }
    manager.result(plan(1, a=0, b=0), result(1, a=ids("a"), b=ids("5")))
    found = rows(planned(manager, plan(2, a=1, b=1))[0])
    assert found == {("a", 1): EVERY, ("b", 1): [END, *DIGITS]}
    assert manager.take_refused() == {"a": "its grammar leaves no token of this vocabulary for output 1 (request a)"}
    manager.result(plan(2, a=1, b=1), result(2, a=ids("x"), b=ids("5")))
    assert set(rows(planned(manager, plan(3, a=2, b=2))[0])) == {("b", 2)}
    manager.check()


def test_masks_are_looked_up_by_request_and_place_and_a_wrong_place_is_a_fault():
    step = plan(4, a=2, b=0)
    words = np.arange(4, dtype=np.uint32).tobytes()
    masks = GrammarOutput(step=4, req_ids=["b", "a"], places=[1, 0], positions=[0, 2], width=2, bitmask=words)
    assert [(sample, row.tolist()) for sample, row in masks_of_samples(masks, step)] == [(1, [0, 1]), (0, [2, 3])]
    for place, position, message in (
        (0, 3, "a mask is for output 3, the next is 2"),
        (1, 2, r"a mask stands for entry 1, which is b \(request a\)"),
    ):
        wrong = GrammarOutput(step=4, req_ids=["a"], places=[place], positions=[position], width=2, bitmask=words[:8])
        with pytest.raises(BooksError, match=message):
            masks_of_samples(wrong, step)


def test_the_place_of_a_mask_is_that_among_the_requests_that_sample():
    step = msgspec.structs.replace(plan(4, a=2, b=0, c=1), samples=np.array([False, True, True]))
    masks = GrammarOutput(step=4, req_ids=["c"], places=[2], positions=[1], width=1, bitmask=b"abcd")
    assert [sample for sample, _ in masks_of_samples(masks, step)] == [1]


def test_a_row_that_goes_to_a_free_request_is_not_looked_at_again():
    manager = make(a=matcher(regex="x+"))
    manager.plan(plan(1, new={"a": []}, a=0))
    manager.drop(["a"])
    manager.add("z", matcher(regex="y+"))
    rows_of_a = plan(2, new={"z": []}, z=0)
    moved = msgspec.structs.replace(rows_of_a.scheduled_new_reqs[0], row=row_of("a"))
    manager.plan(msgspec.structs.replace(rows_of_a, rows=np.array([row_of("a")]), scheduled_new_reqs=[moved]))
    manager.result(plan(1, a=0), result(1, a=ids("x")))  # late, of the row's holder before
    masks = manager.take_masks()
    assert [rows(one) for one in masks] == [{}, {("z", 0): ids("y")}]
    manager.result(plan(2, z=0), result(2, z=ids("y")))
    manager.check()


def test_control_and_special_tokens_are_never_allowed_inside_a_string():
    manager = make(a=matcher(json_schema={"type": "string"}), b=matcher(json_schema={"type": "string", "maxLength": 9}))
    planned(manager, plan(1, new={"a": [], "b": []}, a=0, b=0))
    manager.result(plan(1, a=0, b=0), result(1, a=ids('"'), b=ids('"')))
    manager.plan(plan(2, a=1, b=1))
    for allowed in rows(manager.take_masks()[-1]).values():
        assert len(allowed) > 90
        assert END not in allowed
        assert THOUGHT not in allowed
        texts = [VOCABULARY.tokens[token] for token in allowed]
        assert not any(byte < 0x20 for data in texts for byte in data)
