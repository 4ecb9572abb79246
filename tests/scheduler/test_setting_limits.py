"""Settings have limits on both sides, and an error says which one was passed."""

import math
import re
from typing import Any

import pytest

from callboard import ConfigError, EngineConfig
from callboard.scheduler import KVCacheManager, SchedulerConfig
from callboard.scheduler.kv_groups import KVGroup

COUNTS = [
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "max_model_len",
    "block_size",
    "num_kv_blocks",
    "steps_in_flight",
    "prefill_schedule_interval",
    "max_backfill",
    "long_prefill_token_threshold",
]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("make", [SchedulerConfig, EngineConfig])
def test_a_count_that_no_column_holds_is_refused(name: str, make: Any):
    make(**{name: 2**31 - 1})
    for value in (2**31, 2**70):
        with pytest.raises(ConfigError, match=f"^{name} is {value}, the most is 2147483647$"):
            make(**{name: value})
    with pytest.raises(ConfigError, match=f"^{name} is a int that cannot be shown, the most is 2147483647$"):
        make(**{name: 10**5000})


@pytest.mark.parametrize("name", ["max_waiting", "max_waiting_tokens", "max_logprobs", "num_threads"])
def test_a_count_of_the_engine_has_the_same_limit(name: str):
    with pytest.raises(ConfigError, match=f"^{name} is {2**31}, the most is 2147483647$"):
        EngineConfig(**{name: 2**31})


def test_bytes_of_the_cache_may_be_as_many_as_a_machine_could_address():
    assert EngineConfig(kv_cache_memory=2**40).kv_cache_memory == 2**40
    with pytest.raises(ConfigError, match=f"^kv_cache_memory is {2**63}, the most is {2**63 - 1}$"):
        EngineConfig(kv_cache_memory=2**63)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, 2e9, 10**400, 10**5000, True], ids=type)
def test_a_time_to_stop_is_one_that_a_clock_can_tell(value: float):
    with pytest.raises(ConfigError, match=r"^stop_timeout is .*, needed is a number of seconds above 0, up to 1e9"):
        EngineConfig(stop_timeout=value)
    assert EngineConfig(stop_timeout=math.inf).stop_timeout == math.inf


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "is 0, the least is 1"),
        (-1, "is -1, the least is 1"),
        (2**31, "is 2147483648, the most is 2147483647"),
        (1.5, "is 1.5, a whole number is needed"),
        (math.nan, "is nan, a whole number is needed"),
        (True, "is True, a whole number is needed"),
        ("a", "is 'a', a whole number is needed"),
    ],
)
@pytest.mark.parametrize("name", ["window", "num_layers"])
def test_a_group_of_layers_has_a_window_and_layers_in_whole_numbers(name: str, value: Any, said: str):
    with pytest.raises(ConfigError, match=f"^{name} {re.escape(said)}$"):
        KVGroup(**{name: value})


@pytest.mark.parametrize("groups", [(), [], None, 5, (KVGroup(), None), (KVGroup,), "ab"])
def test_there_is_at_least_one_group(groups: Any):
    with pytest.raises(ConfigError, match=r"^kv_groups is .*, needed are KVGroups, at least one$"):
        SchedulerConfig(kv_groups=groups)
    with pytest.raises(ConfigError, match=r"^kv_groups is .*, needed are KVGroups, at least one$"):
        KVCacheManager(10, 4, groups=groups)
