"""Who is admitted, when, and with which blocks."""

import pytest
from play import Play, some

from callboard.scheduler.errors import InvalidRequestError
from callboard.scheduler.scheduler import NOTHING_GRANTED


def test_all_blocks_of_a_prompt_are_reserved_with_its_first_chunk():
    play = Play(blocks=10, max_num_scheduled_tokens=16)
    play.add("a", 100)
    assert play.step() == {"a": 16}
    assert play.last_plan.scheduled_new_reqs[0].block_ids == [1, 2, 3, 4, 5, 6, 7]
    assert play.free_blocks() == 3


def test_a_new_request_carries_everything_that_a_runner_needs():
    play = Play()
    play.add("a", [5, 6, 7], max_tokens=3, adapter="wise")
    (new,) = play.plan().scheduled_new_reqs
    assert (new.req_id, new.token_ids, new.num_prompt_tokens, new.block_ids) == ("a", [5, 6, 7], 3, [1])
    assert (new.num_computed_tokens, new.adapter, new.resumed) == (0, "wise", False)
    assert new.sampling_params.max_tokens == 3


def test_later_plans_tell_only_what_has_changed():
    play = Play()
    play.add("a", 16)
    play.step()
    told = play.plan().scheduled_cached_reqs
    assert (told.req_ids, told.new_block_ids) == (["a"], [[2]])
    assert (told.num_computed_tokens, told.num_output_tokens) == ([16], [1])


def test_a_request_that_finds_no_room_is_not_overtaken_by_a_smaller_one():
    play = Play(blocks=10)
    play.add("running", 96, max_tokens=2)
    play.step()
    for name, count in {"X": 128, "Y": 10, "Z": 10}.items():
        play.add(name, count)
    assert play.step() == {"running": 1}
    assert play.waiting() == ["X", "Y", "Z"]
    assert play.step() == {"X": 128, "Y": 10, "Z": 10}


def test_the_whole_queue_is_looked_at_again_once_the_request_at_its_head_is_gone():
    play = Play(blocks=10)
    play.add("running", 96)
    play.step()
    for name, count in {"X": 128, "Y": 10, "Z": 10}.items():
        play.add(name, count)
    assert play.step() == {"running": 1}
    play.scheduler.abort("X")
    assert play.step() == {"running": 1, "Y": 10, "Z": 10}


def test_watermark_blocks_stay_free_beside_others():
    play = Play(blocks=10, watermark=0.2)
    play.add("A", 64)
    play.add("B", 80)
    assert play.step() == {"A": 64}


def test_without_a_watermark_the_pool_is_filled():
    play = Play(blocks=10)
    play.add("A", 64)
    play.add("B", 80)
    assert play.step() == {"A": 64, "B": 80}


def test_a_request_that_is_alone_may_use_the_watermark_too():
    play = Play(blocks=10, watermark=0.5)
    play.add("A", 160, max_tokens=1)
    assert play.step() == {"A": 160}
    assert play.reason("A") == "length"


def test_a_second_request_with_an_id_that_is_alive_is_refused_and_the_first_goes_on():
    play = Play()
    play.add("a", 10, max_tokens=2)
    with pytest.raises(InvalidRequestError, match="request id 'a' is in use"):
        play.add("a", 20)
    assert play.steps(2) == [{"a": 10}, {"a": 1}]
    assert play.tokens["a"] == [7, 7]


def test_an_id_may_be_used_again_after_its_request_has_ended():
    play = Play(blocks=4)
    for _ in range(2):
        play.add("a", 10, max_tokens=1)
        assert play.step() == {"a": 10}
        assert play.ends.pop("a").reason == "length"
    assert play.free_blocks() == 4


def test_ids_that_are_used_again_meet_nothing_of_the_request_before():
    play = Play(caching=True)
    play.add("a", some(40), max_tokens=5)
    play.step()
    play.scheduler.abort("a")
    play.add("a", some(40, start=500), max_tokens=1)
    assert play.step() == {"a": 40}
    assert play.tokens["a"] == [7]


def test_a_life_is_told_in_events():
    play = Play(max_num_running_reqs=1)
    play.add("a", 10, max_tokens=1)
    play.add("b", 10)
    play.step()
    told = [(event.kind, event.request_id, event.step) for event in play.last_outputs.events]
    assert told == [("QUEUED", "a", 0), ("QUEUED", "b", 0), ("SCHEDULED", "a", 1), ("FINISHED", "a", 1)]


def test_a_status_tells_where_a_request_is():
    play = Play(blocks=2, block_size=4)
    play.add("a", 4)
    play.add("b", 3)
    told = []
    for _ in range(2):
        told.append({name: state.status.name for name, state in play.scheduler.books.requests.items()})
        play.step()
    told.append({name: state.status.name for name, state in play.scheduler.books.requests.items()})
    assert told == [
        {"a": "WAITING", "b": "WAITING"},
        {"a": "RUNNING", "b": "RUNNING"},
        {"a": "RUNNING", "b": "PREEMPTED"},
    ]


def test_counts_tell_who_runs_waits_and_has_ended():
    play = Play(max_num_running_reqs=1)
    for name in "abc":
        play.add(name, 10, max_tokens=1)
    play.step()
    play.plan()
    counts = play.scheduler.statistics()
    assert (counts.num_running, counts.num_waiting, counts.num_finished, counts.num_steps) == (1, 1, 1, 2)
    assert (counts.num_prompt_tokens, counts.num_generated_tokens) == (30, 1)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_head_that_found_no_room_is_asked_for_again_only_when_something_has_changed(policy: str):
    play = Play(blocks=4, block_size=16, policy=policy, max_num_scheduled_tokens=100)
    play.add("runs", 34, max_tokens=40)
    play.add("head", 40, priority=2)
    play.step()
    assert play.waiting() == ["head"]
    wants = play.scheduler.propose(0.0)  # the second block is not full yet, nothing is given back
    assert wants is None
    play.scheduler.commit(NOTHING_GRANTED, 0.0)
    play.add("urgent", 3, priority=1)  # may come first, and finds room
    wants = play.scheduler.propose(0.0)
    assert wants is not None
    assert [admit.req_id for admit in wants.admit][:1] == ["head" if policy == "fcfs" else "urgent"]


def test_a_head_that_found_no_room_gets_what_an_abort_gives_back():
    play = Play(blocks=4, block_size=16, max_num_scheduled_tokens=100)
    play.add("runs", 34, max_tokens=40)
    play.add("head", 40)
    play.steps(3)
    play.scheduler.abort("runs")
    assert play.step() == {"head": 40}
