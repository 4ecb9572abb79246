"""Settings of the scheduler, checked once when they are made."""

from __future__ import annotations

import msgspec

from .errors import ConfigError
from .hashing import digest_of
from .kv_groups import ONE_GROUP, GroupSizes, KVGroup, check_groups
from .policy import Policy, PriorityPolicy
from .setting_types import at_least, check_types, shown


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and choices of one scheduler.

    Args:
        max_num_running_reqs: requests that may hold a row at once.
        max_num_scheduled_tokens: tokens that one step may compute (the token budget).
        max_model_len: tokens of one request, prompt and output together.
        block_size: tokens in a KV block.
        num_kv_blocks: blocks of the pool; None: learnt from the KV cache at the first plan.
        policy: "fcfs", "priority", or an object with the methods of ``Policy``.
        enable_prefix_caching: whether blocks are published and looked up.
        enable_chunked_prefill: whether a prompt may be split over steps.
        long_prefill_token_threshold: most tokens of one request in a step that has
            others to serve; 0 is no cap.
        prefill_schedule_interval: while somebody decodes, prompts are computed in every such step only; 1: in each.
        priority_preemption: under the priority policy, whether a more urgent request takes blocks and
            slot of a running one, and the budget goes by priority; otherwise it waits for them. Off
            while a policy without priorities is in force, after a swap.
        max_backfill: requests that may run out of their turn while the head of the queue finds no
            room. They give way to it, and take no token from it.
        watermark: share of the pool kept free when a request is admitted beside others.
        steps_in_flight: plans that may be under way at once; the channel's capacity.
        eos_token_ids: tokens that end a text.
        weights_id: identity of the weights, part of every prefix-cache key.
        kv_groups: groups of layers with block tables of their own, as the KV cache has them.
        prefix_hash: digest that makes these keys: "sha256", "blake2b", or cut, as in "sha256-128".
    """

    max_num_running_reqs: int = 256
    max_num_scheduled_tokens: int = 8192
    max_model_len: int = 8192
    block_size: int = 16
    num_kv_blocks: int | None = None
    policy: str | Policy = "fcfs"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    prefill_schedule_interval: int = 1
    priority_preemption: bool = False
    max_backfill: int = 0
    watermark: float = 0.0
    steps_in_flight: int = 1
    eos_token_ids: tuple[int, ...] = ()
    weights_id: str = ""
    kv_groups: tuple[KVGroup, ...] = ONE_GROUP
    prefix_hash: str = "sha256"

    def __post_init__(self) -> None:
        check_types((name, getattr(self, name)) for name in self.__struct_fields__)
        for name in (
            "max_num_running_reqs",
            "max_num_scheduled_tokens",
            "max_model_len",
            "block_size",
            "steps_in_flight",
            "prefill_schedule_interval",
        ):
            at_least(name, getattr(self, name), 1)
        if self.num_kv_blocks is not None:
            at_least("num_kv_blocks", self.num_kv_blocks, 1)
        at_least("max_backfill", self.max_backfill, 0)
        at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        if not self.enable_chunked_prefill and self.long_prefill_token_threshold:
            raise ConfigError(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) splits prompts, "
                "which enable_chunked_prefill=False forbids"
            )
        check_policy(self.policy)
        check_groups(self.kv_groups)
        self._check_priorities()
        digest_of(self.prefix_hash)
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark is {shown(self.watermark)}, the limits are 0 and below 1")
        if not self.enable_chunked_prefill and self.max_num_scheduled_tokens < self.max_model_len:
            raise ConfigError(
                f"without chunked prefill max_num_scheduled_tokens ({self.max_num_scheduled_tokens}) "
                f"must be at least max_model_len ({self.max_model_len})"
            )

    def _check_priorities(self) -> None:
        if self.priority_preemption and self.policy != "priority" and not isinstance(self.policy, PriorityPolicy):
            raise ConfigError(
                f"priority_preemption needs the policy 'priority' or a PriorityPolicy, got {shown(self.policy)}"
            )

    @property
    def max_in_flight_tokens(self) -> int:
        """Most tokens of one request that steps under way may hold."""
        return self.steps_in_flight * self.max_num_scheduled_tokens

    def group_sizes(self) -> GroupSizes:
        """How many blocks requests need in each group of layers."""
        return GroupSizes(self.kv_groups, self.block_size, self.max_in_flight_tokens)


def check_policy(policy: object) -> None:
    """Raise ConfigError unless this is a name, or an object (not a class) with the methods of ``Policy``."""
    if isinstance(policy, type) or not isinstance(policy, str | Policy):
        raise ConfigError(f"policy is {shown(policy)}, needed is a name or an object with the methods of Policy")
