"""Everybody goes on: no request stands still, and none gives way for ever, whoever comes, waits or leaves."""

import random

import pytest
from play import Ledger, Play, ToyPlay

from callboard.scheduler import PauseState
from callboard.scheduler.messages import Grow, Release, Victim


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize(("blocks", "size", "lengths", "answers"), [(4, 1, (1, 3, 3), 11), (5, 2, (2, 6, 6), 4)])
def test_requests_that_share_all_their_blocks_do_not_give_way_to_each_other_for_ever(
    blocks: int, size: int, lengths: tuple[int, ...], answers: int, depth: int
):
    play = ToyPlay(blocks=blocks, block_size=size, caching=True, steps_in_flight=depth)
    for place, length in enumerate(lengths):
        prompt = [3 + length + 7 * k for k in range(length)]  # the last two are equal
        play.add(f"r{place}", prompt, max_tokens=answers)
    play.until_done(depth)
    play.assert_as_alone()


@pytest.mark.parametrize("first", [0, 50])
def test_equal_prompts_in_a_small_cache_all_end(first: int):
    for seed in range(first, first + 50):
        r = random.Random(seed)
        depth, size = r.randint(2, 4), r.choice([1, 1, 2])
        longest = r.randint(1, 9)
        play = ToyPlay(
            blocks=r.randint(-(-longest // size), 14), block_size=size, caching=True, steps_in_flight=depth,
            max_num_running_reqs=4,
        )  # fmt: skip
        for place in range(r.randint(2, 4)):
            length, first = r.randint(1, longest), r.randint(0, 2)
            for copy in range(r.randint(1, 2)):
                prompt = [(first + 7 * k) % 50 for k in range(length)]
                play.add(f"r{place}.{copy}", prompt, max_tokens=r.randint(2, 12))
        play.until_done(depth)
        play.assert_as_alone()


def test_a_block_that_two_requests_have_given_up_is_on_its_way_and_nobody_is_preempted_for_it():
    ledger = Ledger(4, block_size=1)
    for name in ("a", "b"):  # they share all their blocks
        ledger.take(name, [1, 2, 3])
    ledger.take("c", [9])
    assert ledger.kv.statistics().num_free_blocks == 0
    granted = ledger.ask(
        release=[Release(req_id=name, fence=5) for name in ("a", "b")],
        grow=[Grow(req_id="c", num_blocks=3)],
        victims=[Victim(req_id="c", fence=0)],
    )
    assert (granted.preempted, granted.stalled) == ([], {"c"})
    assert len(ledger.ask(completed=5, grow=[Grow(req_id="c", num_blocks=3)]).grown["c"]) == 3


def test_whoever_would_have_to_give_way_itself_waits_for_what_steps_under_way_bring_it():
    ledger = Ledger(2, block_size=1)
    ledger.take("first", [1])
    ledger.take("last", [2])
    wants = {"grow": [Grow(req_id="last", num_blocks=1)], "victims": [Victim(req_id="last", fence=7)]}
    assert ledger.ask(completed=6, **wants).stalled == {"last"}
    assert ledger.ask(completed=7, **wants).preempted == ["last"]


def out_of_turn(**settings: object) -> ToyPlay:
    """A head of the queue that finds no room, and one behind it that runs in its place."""
    play = ToyPlay(blocks=10, max_num_scheduled_tokens=8, max_num_running_reqs=4, max_backfill=1, **settings)
    play.add("long", 16, max_tokens=8)
    play.steps(2)
    play.add("head", 28, max_tokens=4, **({"priority": 2**63 - 1} if settings.get("policy") == "fcfs" else {}))
    play.add("late", 3, max_tokens=20)
    play.steps(2)
    assert play.waiting() == ["head"]
    return play


def test_a_pause_that_keeps_the_head_out_leaves_its_budget_to_those_that_run():
    play = out_of_turn()
    play.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    play.until_done()
    assert set(play.ends) == {"long", "late"}
    play.scheduler.set_pause_state(PauseState.UNPAUSED)
    play.until_done()
    play.assert_as_alone()


def test_a_request_of_the_least_priority_of_all_still_comes_before_those_that_overtook_it():
    play = out_of_turn(policy="fcfs")
    play.until_done()
    play.assert_as_alone()


def test_who_overtook_one_that_has_left_gives_way_no_longer():
    play = out_of_turn()
    play.add("next", 28, max_tokens=1)
    play.scheduler.abort("head")
    play.step()
    assert not play.scheduler.books.table.num_out_of_turn
    play.until_done()
    play.assert_as_alone()


def test_a_late_one_takes_blocks_of_a_parked_session_once_nobody_is_left_that_it_overtook():
    play = ToyPlay(blocks=10, max_num_running_reqs=4, max_num_scheduled_tokens=64, max_backfill=1)
    play.add("talk", 16, max_tokens=4, session="s")
    play.until_done()
    play.add("first", 12, max_tokens=30)
    play.step()
    play.add("head", 36, max_tokens=1)
    play.add("late", 3, max_tokens=30)
    play.steps(2)
    play.scheduler.abort(["head", "first"])
    play.until_done()
    assert len(play.tokens["late"]) == 30


def test_a_late_one_that_decodes_alone_holds_no_prompt_back():
    play = ToyPlay(
        blocks=12, max_num_running_reqs=4, max_num_scheduled_tokens=4, max_backfill=1, prefill_schedule_interval=4,
        long_prefill_token_threshold=2,
    )  # fmt: skip
    play.add("long", 40, max_tokens=4)
    play.step()
    play.add("head", 28, max_tokens=1)
    play.add("late", 2, max_tokens=40)
    play.steps(3)
    play.scheduler.abort("head")
    play.until_done()
    play.assert_as_alone()


def test_an_input_of_a_session_that_kept_nothing_leaves_nothing_of_another_text_under_its_name():
    ledger = Ledger(9, block_size=1)
    ledger.take("other text", [4, 4, 1])
    ledger.ask(release=[Release(req_id="other text", fence=0, keep_as="session")])
    assert ledger.kv.statistics().num_kept_blocks == 3
    ledger.ask(release=[Release(req_id="lost its blocks", fence=0, keep_as="session")])
    assert ledger.kv.statistics().num_kept_blocks == 0


def test_a_session_goes_on_from_a_text_with_the_same_adapter_and_salt_only():
    for other in ({"adapter": "b"}, {"cache_salt": "b"}):
        play = Play(blocks=20, block_size=4)
        play.add("first", [5] * 9, max_tokens=1, session="s", adapter="a", cache_salt="a")
        play.until_done()
        play.add("second", [5] * 9, max_tokens=1, session="s", **({"adapter": "a", "cache_salt": "a"} | other))
        assert play.step() == {"second": 9}
