"""How long a simulated step takes: a line through its tokens and requests, and presets that imitate real devices."""

from __future__ import annotations

import math

import msgspec

from ..scheduler.errors import ConfigError
from ..scheduler.plan import SchedulerOutput
from ..scheduler.setting_types import at_least


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step takes, in seconds.

    Args:
        fixed: what every step takes; on a real device mostly the one reading of all weights.
        per_token: for each token that is computed.
        per_request: for each request in the step; on a real device its keys and values are read.
        hidden_tokens: tokens whose computing is hidden behind the fixed part: the device
            computes while it still reads weights.
    """

    fixed: float = 0.0
    per_token: float = 0.0
    per_request: float = 0.0
    hidden_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("fixed", "per_token", "per_request"):
            if not 0.0 <= (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name} is {value}, needed is a finite number of seconds of at least 0")
        at_least("hidden_tokens", self.hidden_tokens, 0)

    def of(self, plan: SchedulerOutput) -> float:
        """The time of one step."""
        return self.of_counts(plan.total_num_scheduled_tokens, len(plan.req_ids))

    def of_counts(self, num_tokens: int, num_requests: int) -> float:
        """The time of a step with so many tokens of so many requests; one that computes nothing takes none."""
        if not num_tokens:
            return 0.0
        shown = max(num_tokens - self.hidden_tokens, 0)
        return self.fixed + self.per_token * shown + self.per_request * num_requests


# An H200 with a model of Llama 3.1's 8B shape in bfloat16, contexts of about 1,000 tokens. From data
# sheets, not from a run. The card: 4.8 TB/s and 989 dense TFLOP/s; 80 % and 60 % of that are taken as reached.
#   fixed: 7.5e9 weights of 2 bytes (the input embeddings are not read) at 3.84 TB/s are 3.9 ms; 0.3 ms for
#       launches and sampling.
#   per_token: 2 * 7.5e9 operations at 593 TFLOP/s are 25 us. 3.9 ms hide 155 of them.
#   per_request: 32 layers * 2 * 8 heads * 128 * 2 bytes are 131 kB a token of context; 1,000 tokens at
#       3.84 TB/s are 34 us.
# One request decodes at 236 tokens/s, 256 at 17,000.
H200_8B = Latency(fixed=4.2e-3, per_token=25e-6, per_request=34e-6, hidden_tokens=155)

# Two cores of the Sapphire Rapids class with a model of 135 million weights in float32: a line
# through measurements of a plain torch decoder at context 256 (27 ms a step at 1 row, 104 at 32) and of
# a prompt of 512 tokens in one step (0.5 s).
TWO_CORES_135M = Latency(fixed=25e-3, per_token=1e-3, per_request=1.5e-3)
