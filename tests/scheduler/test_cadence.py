"""Prompts beside requests that decode: computed in every Nth step only."""

from play import Play

from callboard.scheduler import PauseState


def _one_decodes(interval: int, **settings: object) -> Play:
    play = Play(prefill_schedule_interval=interval, **settings)
    play.add("old", 8)
    play.step()
    return play


def _steps_until(play: Play, name: str) -> int:
    """Steps without a request, up to the one that has it."""
    for count in range(20):
        if name in play.step():
            return count
    raise AssertionError(f"{name} was never planned")


def test_a_new_prompt_is_held_until_the_interval_has_passed():
    for interval, held in {1: 0, 2: 1, 4: 3}.items():
        play = _one_decodes(interval)
        play.add("new", 8)
        assert _steps_until(play, "new") == held


def test_plans_that_compute_nothing_do_not_shorten_the_hold():
    play = _one_decodes(4)
    play.add("new", 8)
    held = 0
    while True:
        play.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        assert play.plan().is_empty
        assert play.plan().is_empty
        play.scheduler.set_pause_state(PauseState.UNPAUSED)
        if "new" in play.step():
            break
        held += 1
    assert held == 3


def test_the_rest_of_a_prompt_that_was_begun_is_held_too_while_the_others_decode():
    play = _one_decodes(3, max_num_scheduled_tokens=50)
    play.steps(2)
    play.add("long", 80)
    assert play.steps(4) == [{"old": 1, "long": 49}, {"old": 1}, {"old": 1}, {"old": 1, "long": 31}]


def test_a_prompt_that_was_left_over_for_lack_of_budget_need_not_wait_for_another_interval():
    play = Play(prefill_schedule_interval=3, max_num_scheduled_tokens=200)
    play.add("a", 200)
    play.add("b", 200)
    assert play.steps(2) == [{"a": 200}, {"a": 1, "b": 199}]


def test_nobody_is_held_while_nobody_decodes():
    play = _one_decodes(4)
    play.scheduler.abort("old")
    play.add("new", 8)
    assert play.step() == {"new": 8}


def test_a_prompts_last_single_token_is_not_held():
    play = _one_decodes(3, max_num_scheduled_tokens=50)
    play.steps(2)
    play.add("long", 50)
    assert play.steps(2) == [{"old": 1, "long": 49}, {"old": 1, "long": 1}]


def test_with_steps_in_flight_a_held_prompt_is_planned_at_the_same_step():
    play = _one_decodes(4, steps_in_flight=3, max_model_len=40)
    play.add("new", 8, max_tokens=3)
    plans = play.until_done(depth=3)
    assert next(number for number, plan in enumerate(plans) if "new" in plan.req_ids) == 3
