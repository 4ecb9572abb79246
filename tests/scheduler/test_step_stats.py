"""Counts of each step, and how prompts were come by."""

from play import Play, some

from callboard.scheduler.messages import Follow
from callboard.scheduler.statistics import HitRate, PrefillStats, PrefixCacheStats, SchedulerStats


def followed(**settings) -> Play:
    play = Play(**settings)
    play.scheduler.follow(Follow(steps=True))
    return play


def stats(play: Play) -> SchedulerStats:
    assert play.last_outputs.scheduler_stats is not None
    return play.last_outputs.scheduler_stats


def test_a_step_is_told_in_numbers():
    play = followed(max_num_scheduled_tokens=100, blocks=20)
    for name in "abcde":
        play.add(name, 50)
    play.step()
    assert stats(play) == SchedulerStats(
        step=1,
        num_scheduled_reqs=2,
        num_scheduled_tokens=100,
        num_new_tokens=2,
        num_running=2,
        num_waiting=3,
        num_preemptions=0,
        kv_usage=1 - 12 / 20,
        prefix=PrefixCacheStats(),
    )


def test_look_ups_are_told_once_and_in_tokens():
    play = followed(caching=True)
    play.add("first", some(40))
    play.step()
    assert stats(play).prefix == PrefixCacheStats(requests=1, queries=40, hits=0)
    play.step()
    assert stats(play).prefix == PrefixCacheStats()
    play.add("second", some(40))
    play.add("third", some(40))
    play.step()
    assert stats(play).prefix == PrefixCacheStats(requests=2, queries=80, hits=64)


def test_a_victims_look_up_is_counted_apart():
    play = followed(caching=True, blocks=6, block_size=4)
    play.add("first", 11, max_tokens=9)
    play.add("second", 7, max_tokens=9)
    told: list[SchedulerStats] = []
    while play.scheduler.num_unfinished:
        play.step()
        told.append(stats(play))
    assert sum(one.num_preemptions for one in told) == play.scheduler.statistics().num_preemptions == 1
    prefixes = [one.prefix for one in told]
    assert sum(prefix.requests for prefix in prefixes) == 2
    assert sum(prefix.preempted_requests for prefix in prefixes) == 1


def test_without_caching_no_look_up_is_told():
    play = followed(caching=False)
    play.add("a", some(40))
    play.step()
    assert stats(play).prefix == PrefixCacheStats()


def test_a_reset_is_told_with_the_next_step_only():
    play = followed(caching=True)
    play.add("a", some(40), max_tokens=1)
    play.step()
    play.free_blocks()
    assert play.kv.reset_prefix_cache()
    play.scheduler.prefix_cache_was_reset(0.0)
    play.add("b", some(40))
    told = [(play.step(), stats(play).prefix.reset)[1] for _ in range(2)]
    assert told == [True, False]


def test_who_begins_to_follow_gets_nothing_of_what_was_before():
    play = Play(caching=True)
    play.add("a", some(40))
    play.step()
    assert play.last_outputs.scheduler_stats is None
    play.scheduler.follow(Follow(steps=True))
    play.step()
    assert stats(play).prefix == PrefixCacheStats()


def test_a_prompts_prefill_is_told_with_its_first_output_only():
    play = Play(caching=True)
    play.add("first", some(40))
    play.step()
    first = play.last_outputs.prefill
    play.add("second", some(40))
    play.step()
    second = play.last_outputs.prefill
    play.step()
    assert first == {"first": PrefillStats(num_prompt_tokens=40, num_cached_tokens=0, num_cacheable_tokens=32)}
    assert first["first"].num_computed_tokens == 40
    assert second == {"second": PrefillStats(num_prompt_tokens=40, num_cached_tokens=32)}
    assert (second["second"].num_computed_tokens, second["second"].num_external_tokens) == (8, 0)
    assert (play.last_outputs.prefill, play.last_outputs.cached) == ({}, {})


def test_local_and_external_tokens_add_up():
    prefill = PrefillStats(num_prompt_tokens=1000, num_cached_tokens=400, num_external_tokens=200)
    assert prefill.num_computed_tokens == 400


def test_a_prefill_is_fixed_at_the_first_admission():
    play = Play(caching=True, blocks=10, max_num_scheduled_tokens=96)
    play.add("first", 80, max_tokens=2)
    play.add("second", 80, max_tokens=1)
    play.steps(2)
    assert play.last_plan.preempted_req_ids == {"second"}  # half-way through its prompt
    play.step()
    assert play.last_plan.scheduled_new_reqs[0].num_computed_tokens == 16
    told = PrefillStats(num_prompt_tokens=80, num_cached_tokens=0, num_cacheable_tokens=80)
    assert play.last_outputs.prefill == {"second": told}


def test_without_caching_nothing_of_a_prompt_can_be_kept():
    play = Play()
    play.add("a", 40)
    play.step()
    assert play.last_outputs.prefill["a"] == PrefillStats(num_prompt_tokens=40, num_cached_tokens=0)


def test_an_output_says_nothing_of_a_request_whose_prompt_is_not_complete():
    play = Play(max_num_scheduled_tokens=20)
    play.add("a", 50)
    for _ in range(2):
        play.step()
        assert (play.last_outputs.view(), play.last_outputs.prefill) == ({}, {})
    play.step()
    assert list(play.last_outputs.view()) == list(play.last_outputs.prefill) == ["a"]


def test_a_hit_rate_is_that_of_the_newest_look_ups():
    rate = HitRate()
    assert rate.rate == 0.0
    rate.add(1, 20, 9)
    assert rate.rate == 0.45
    rate.add(999, 80, 16)
    assert rate.rate == 0.25
    rate.add(1, 10, 2)  # the 1001st: the first leaves
    assert rate.rate == 18 / 90
    rate.add(0, 0, 0)
    assert rate.rate == 18 / 90
    rate.reset()
    assert rate.rate == 0.0


def test_look_ups_larger_than_the_window_are_kept_until_there_are_newer_ones():
    rate = HitRate(window=5)
    rate.add(10, 100, 50)
    assert rate.rate == 0.5
    rate.add(1, 10, 0)
    assert rate.rate == 0.0


def test_the_hit_rate_of_the_scheduler_leaves_victims_out():
    play = Play(caching=True, blocks=6, block_size=4)
    play.add("first", 11, max_tokens=9)
    play.add("second", 7, max_tokens=9)
    play.until_done()
    kv = play.kv.statistics()
    assert (kv.preempted_queries > 0, kv.preempted_hits > 0) == (True, True)
    play.add("third", [*range(1_000, 1_011), 5], max_tokens=1)  # as "first" began
    play.step()
    assert play.scheduler.statistics().prefix_hit_rate == 8 / (11 + 7 + 12)


def test_a_request_that_is_put_off_three_times_counts_once():
    play = followed(caching=True, blocks=4)
    play.add("running", 48, max_tokens=5)
    play.step()
    assert stats(play).prefix == PrefixCacheStats(requests=1, queries=48)
    play.add("waiting", 32, max_tokens=1)
    told = [(play.step(), stats(play).prefix)[1] for _ in range(5)]
    assert told == [PrefixCacheStats()] * 4 + [PrefixCacheStats(requests=1, queries=32)]
