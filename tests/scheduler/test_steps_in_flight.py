"""Plans made before the results of the plans before them are known."""

from collections import deque

import pytest
from play import E, Play, ToyPlay, some

from callboard.scheduler import Finished, FinishReason, SchedulerOutput
from callboard.scheduler.errors import RunnerError

DEPTHS = [1, 2, 3, 4]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_no_plan_is_wasted_on_a_request_with_a_known_end(depth: int, max_tokens: int):
    play = Play()
    play.add("a", 10, max_tokens=max_tokens)
    assert len(play.until_done(depth)) == max_tokens
    assert play.tokens["a"] == [7] * max_tokens


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("prompt", "outputs"), [(13, 3), (14, 2), (15, 1)])
def test_no_position_beyond_the_model_length_is_ever_planned(depth: int, prompt: int, outputs: int):
    play = Play(max_model_len=16)
    play.add("a", prompt, max_tokens=100)
    plans = play.until_done(depth)
    assert max(int((plan.num_computed + plan.num_tokens).max()) for plan in plans) == 15
    assert (len(play.tokens["a"]), play.reason("a")) == (outputs, "length")


def test_promised_outputs_count_as_tokens_of_the_next_plans():
    play = Play()
    play.add("a", 10)
    plans = [play.plan() for _ in range(3)]
    assert [plan.total_num_scheduled_tokens for plan in plans] == [10, 1, 1]
    told = plans[1].scheduled_cached_reqs
    assert (told.num_computed_tokens, told.num_output_tokens) == ([10], [1])
    assert plans[2].scheduled_cached_reqs.num_computed_tokens == [11]


def test_a_request_that_arrives_while_a_step_is_under_way_joins_the_next_plan():
    play = Play()
    play.add("A", 512)
    first = play.plan()
    play.add("B", 512)
    second = play.plan()
    assert second.num_scheduled_tokens == {"A": 1, "B": 512}
    play.apply(first)
    play.apply(second)
    assert play.step() == {"A": 1, "B": 1}


def test_two_long_prompts_share_the_budget_of_overlapping_steps():
    play = Play(max_num_scheduled_tokens=10)
    play.add("0", 12, max_tokens=2)
    play.add("1", 12, max_tokens=2)
    plans = play.until_done(depth=2)
    planned = [plan.num_scheduled_tokens for plan in plans]
    assert planned == [{"0": 10}, {"0": 2, "1": 8}, {"0": 1, "1": 4}, {"1": 1}]


def test_each_of_ten_delivers_until_it_is_aborted():
    play = Play()
    for index in range(10):
        play.add(str(index), 10)
    under_way = deque([play.plan(), play.plan()])
    order = [3, 7, 0, 9, 1, 8, 2, 6, 4, 5]
    for index in order:
        play.scheduler.abort(str(index))
        play.apply(under_way.popleft())
        under_way.append(play.plan())
    assert [len(play.tokens[str(index)]) for index in order] == list(range(10))


def test_an_abort_between_launch_and_result_is_an_abort_and_gives_no_token():
    play = Play(blocks=10)
    play.add("a", 20, max_tokens=1)
    plan = play.plan()
    play.scheduler.abort("a")
    outputs = play.apply(plan)
    assert outputs.req_ids == []
    assert outputs.finished == {"a": Finished(reason=FinishReason.ABORT)}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_blocks_come_back_with_the_result_of_the_last_step_that_may_touch_them(depth: int):
    play = Play(blocks=10)
    play.add("a", 20)
    plans = [play.plan() for _ in range(depth)]
    play.scheduler.abort("a")
    free = []
    for plan in plans:
        free.append(play.free_blocks())
        play.apply(plan)
    assert [*free, play.free_blocks()] == [8] * depth + [10]


def test_a_release_is_owed_until_the_kv_cache_has_heard_of_the_last_steps_end():
    play = Play(blocks=10)
    play.add("a", 20)
    plan = play.plan()
    play.scheduler.abort("a")
    owed = [play.scheduler.owes_release, play.free_blocks(), play.scheduler.owes_release]
    play.apply(plan)
    owed += [play.scheduler.owes_release, play.free_blocks(), play.scheduler.owes_release]
    assert owed == [True, 8, False, True, 10, False]


def test_blocks_of_a_victim_come_back_with_the_result_of_its_last_step():
    play = Play(blocks=4)
    for name, count in {"A": 16, "B": 20, "C": 16}.items():
        play.add(name, count)
    first = play.plan()
    second = play.plan()  # A needs a block while the first step is under way
    assert second.preempted_req_ids == {"C"}
    assert "A" not in second.req_ids
    assert play.kv.block_ids("C") == []
    assert play.kv.statistics().num_fenced_blocks == 1
    play.apply(first)
    assert play.plan().num_scheduled_tokens["A"] == 1
    assert play.kv.statistics().num_fenced_blocks == 0


def test_one_missing_block_costs_one_victim_although_its_block_is_not_free_at_once():
    play = ToyPlay(blocks=4)
    for name, count in {"A": 4, "B": 3, "C": 3, "D": 3}.items():
        play.add(name, count, max_tokens=5)
    first = play.plan()
    second = play.plan()
    assert second.preempted_req_ids == {"D"}
    assert second.num_scheduled_tokens == {"B": 1, "C": 1}
    play.apply(first)
    play.apply(second)
    play.until_done(depth=2)
    play.assert_as_alone()


def test_a_late_token_of_a_victim_is_dropped_and_sampled_again():
    play = ToyPlay(blocks=4)
    for name, count in {"A": 4, "B": 3, "C": 3, "D": 3}.items():
        play.add(name, count, max_tokens=5)
    first, second = play.plan(), play.plan()
    assert play.apply(first).req_ids == ["A", "B", "C"]
    assert play.tokens["D"] == []
    play.apply(second)
    play.until_done()
    assert len(play.tokens["D"]) == 5
    play.assert_as_alone()


def test_a_request_that_ends_gives_its_row_on_but_not_the_blocks_of_a_step_under_way():
    play = Play(blocks=4, max_num_running_reqs=1)
    play.add("A", 16)
    play.add("B", 16)
    first, second = play.plan(), play.plan()
    assert second.num_scheduled_tokens == {"A": 1}
    held = play.kv.block_ids("A")
    play.apply(first, E)
    (new,) = play.plan().scheduled_new_reqs
    assert (new.req_id, new.row) == ("B", second.rows[0])
    assert not set(new.block_ids) & set(held)
    play.apply(second, {"A": 9})
    assert play.tokens == {"A": [E], "B": []}


def test_a_request_waits_for_blocks_that_a_step_under_way_may_touch():
    play = Play(blocks=4)
    play.add("A", 17)
    play.add("B", 48)
    first, second = play.plan(), play.plan()
    play.apply(first, E)
    assert play.plan().req_ids == ()
    play.apply(second)
    assert play.plan().num_scheduled_tokens == {"B": 48}


def test_a_plan_does_not_change_when_later_steps_are_planned_and_applied():
    play = Play(block_size=2)
    play.add("a", 5)
    first = play.plan()
    before = (first.num_tokens.tolist(), first.num_computed.tolist(), list(first.scheduled_new_reqs[0].block_ids))
    for _ in range(3):
        play.plan()
    play.apply(first)
    assert before == (first.num_tokens.tolist(), first.num_computed.tolist(), first.scheduled_new_reqs[0].block_ids)


def test_a_result_for_another_step_is_an_error():
    play = Play()
    play.add("a", 10)
    first, second = play.plan(), play.plan()
    with pytest.raises(RunnerError, match="the result of step 2 came for step 1"):
        play.scheduler.update_from_output(first, play.result(second, 7), 0.0)


def test_a_result_without_a_token_lets_the_request_compute_its_last_token_again():
    play = Play()
    play.add("a", 10)
    play.step({"a": []})
    assert play.tokens["a"] == []
    assert play.step() == {"a": 1}
    assert play.tokens["a"] == [7]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_an_abort_at_any_time_loses_no_block(depth: int, after: int):
    play = Play(blocks=12, block_size=4, max_num_scheduled_tokens=7, caching=True)
    for name in "abc":
        play.add(name, 15, max_tokens=3)
    under_way: deque[SchedulerOutput] = deque()
    for _ in range(after):
        under_way.append(play.plan())
        if len(under_way) == depth:
            play.apply(under_way.popleft())
    assert play.scheduler.abort(["c", "b", "a"])[0] == "c"
    while under_way:
        play.apply(under_way.popleft())
    assert play.free_blocks() == 12


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_follower_of_a_text_under_way_gets_the_tokens_it_gets_alone(depth: int):
    play = ToyPlay(blocks=40, block_size=1, caching=True)
    play.add("a", [0, 1], max_tokens=8)
    plans = [play.plan() for _ in range(depth)]
    play.apply(plans[0])
    play.add("probe", [0, 1, *play.tokens["a"], 3], max_tokens=4)
    under_way = [*plans[1:], play.plan()]
    assert under_way[-1].scheduled_new_reqs[0].num_computed_tokens >= 2
    for plan in under_way:
        play.apply(plan)
    play.until_done(depth)
    play.assert_as_alone()


def test_the_block_of_a_token_whose_value_is_not_known_yet_is_not_found():
    play = Play(block_size=1, caching=True)
    play.add("a", some(2))
    first = play.plan()
    play.plan()
    play.plan()
    play.apply(first, 50)
    play.add("probe", [0, 1, 50, 7, 9])
    assert play.plan().scheduled_new_reqs[0].num_computed_tokens == 3
