"""Settings of the wrong type, or that nothing would honour, are refused by name; so is what no result may hold."""

from typing import Any

import pytest
from play import Play

from callboard import EngineConfig
from callboard.actors import Channel, Mailbox, Supervisor
from callboard.actors.errors import CallboardError
from callboard.runner import Load
from callboard.runner.result_check import check_result
from callboard.scheduler import (
    FCFSPolicy,
    KVCacheManager,
    ModelRunnerOutput,
    PriorityPolicy,
    SchedulerConfig,
    plan_step,
)
from callboard.scheduler.errors import ConfigError, InvalidRequestError, MisuseError, NotBuiltError, RunnerError


@pytest.mark.parametrize("config", [SchedulerConfig, EngineConfig])
@pytest.mark.parametrize(
    ("setting", "needed"),
    [
        ({"enable_prefix_caching": "no"}, "True or False"),
        ({"enable_chunked_prefill": 1}, "True or False"),
        ({"priority_preemption": "x", "policy": "priority"}, "True or False"),
        ({"watermark": "a"}, "a number"),
        ({"watermark": True}, "a number"),
        ({"prefix_hash": 256}, "text"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused_by_name(config: Any, setting: dict[str, Any], needed: str):
    name = next(iter(setting))
    with pytest.raises(ConfigError, match=f"^{name} is {setting[name]!r}, needed is {needed}$"):
        config(**setting)


@pytest.mark.parametrize("tokens", [2, "2", (True,), (2.0,), (-1,), None])
def test_end_tokens_are_a_tuple_of_token_ids(tokens: Any):
    with pytest.raises(ConfigError, match=r"^eos_token_ids is .*, needed is a tuple of token ids$"):
        SchedulerConfig(eos_token_ids=tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": True}, "num_blocks is True, a whole number is needed"),
        ({"num_blocks": "x"}, "num_blocks is 'x', a whole number is needed"),
        ({"num_blocks": 2.5}, "num_blocks is 2.5, a whole number is needed"),
        ({"block_size": 0}, "block_size is 0, the least is 1"),
        ({"max_in_flight_tokens": 0}, "max_in_flight_tokens is 0, the least is 1"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching is 'no', needed is True or False"),
        ({"merge_equal_blocks": 1}, "merge_equal_blocks is 1, needed is True or False"),
    ],
)
def test_the_kv_cache_checks_its_settings(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        KVCacheManager(**{"num_blocks": 4, "block_size": 16} | options)


@pytest.mark.parametrize("policy", ["fcfs", FCFSPolicy])
@pytest.mark.parametrize("config", [SchedulerConfig, EngineConfig])
def test_priority_preemption_needs_a_policy_that_has_priorities(config: Any, policy: Any):
    with pytest.raises(ConfigError, match=r"^priority_preemption needs"):
        config(priority_preemption=True, policy=policy if isinstance(policy, str) else policy())


class OwnPriorities(PriorityPolicy):
    """A user's subclass: it is called behind the guard."""


@pytest.mark.parametrize("policy", ["priority", PriorityPolicy, OwnPriorities])
def test_an_urgent_request_displaces_a_running_one_under_any_priority_policy(policy: Any):
    policy = policy if isinstance(policy, str) else policy()
    play = Play(policy=policy, priority_preemption=True, max_num_running_reqs=1)
    play.add("slow", 20, priority=9)
    play.step()
    play.add("urgent", 10, priority=0)
    assert play.step() == {"urgent": 10}


def test_priority_preemption_is_off_while_another_policy_is_in_force():
    play = Play(policy="priority", priority_preemption=True, max_num_running_reqs=1)
    play.add("slow", 20, priority=9)
    play.step()
    play.scheduler.swap_policy("fcfs")
    play.add("urgent", 10, priority=0)
    assert play.step() == {"slow": 1}
    play.scheduler.swap_policy("priority")
    assert play.step() == {"urgent": 10}


@pytest.mark.parametrize(
    "setting",
    [
        {"kv_load_failure": "fail"},
        {"isolation": "process"},
        {"encoder_cache_tokens": 10},
        {"max_num_encoder_tokens": 10},
        {"kv_connector": "redis"},
    ],
)
def test_a_setting_that_nothing_honours_yet_is_a_config_error_and_no_bad_request(setting: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"^{next(iter(setting))}=.* is not supported yet$") as caught:
        EngineConfig(**setting)
    assert not isinstance(caught.value, InvalidRequestError)


def test_an_encoder_cache_is_not_built():
    play = Play()
    cache: Any = object()
    with pytest.raises(NotBuiltError, match="no encoder cache is built yet"):
        plan_step(play.scheduler, play.kv, cache)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"draft_token_ids": {"a": [7]}}, "draft_token_ids"),
        ({"finished_sending": {"a"}}, "finished_sending"),
        ({"finished_recving": {"a"}}, "finished_recving"),
        ({"failed_block_ids": {1}}, "failed_block_ids"),
        ({"sampled_token_ids": {"a": [7], "stranger": [7]}}, r"tokens for \['stranger'\]"),
    ],
)
def test_a_result_with_what_nobody_would_read_is_refused(given: dict[str, Any], name: str):
    play = Play()
    play.add("a", 4)
    plan = play.plan()
    output = ModelRunnerOutput(**{"step": plan.step, "sampled_token_ids": {"a": [7]}} | given)
    with pytest.raises(RunnerError, match=f"the runner gave {name} in step 1"):
        play.scheduler.update_from_output(plan, output, 0.0)
    with pytest.raises(RunnerError, match=f"the runner gave {name} in step 1"):
        check_result(plan, output, 50)
    assert play.apply(plan).view()["a"].new_token_ids == [7]  # the refused one has changed nothing


def test_within_a_step_nothing_may_change_the_queue():
    play = Play()
    play.scheduler.propose(0.0)
    for name, call in (
        ("grammar_news", lambda: play.scheduler.grammar_news(["a"], {})),
        ("abort", lambda: play.scheduler.abort("a")),
        ("swap_policy", lambda: play.scheduler.swap_policy("fcfs")),
        ("preempt_all", play.scheduler.preempt_all),
    ):
        with pytest.raises(MisuseError, match=f"{name} came between propose and commit"):
            call()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Channel[int](0, name="plans"),
        lambda: [Mailbox("a").lane("x", 1), (box := Mailbox("b")).lane("x", 1), box.lane("x", 1)],
        lambda: Supervisor([], restart={"nobody": None}),  # pyright: ignore[reportArgumentType]
        lambda: Load(rate=0.0),
    ],
)
def test_whatever_is_raised_on_purpose_is_a_callboard_error(make: Any):
    with pytest.raises(CallboardError) as caught:
        make()
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, ValueError)
