"""What a result may say at all: what is not built is refused rather than dropped."""

from __future__ import annotations

from .errors import RunnerError
from .plan import ModelRunnerOutput, SchedulerOutput

NOT_BUILT = ("draft_token_ids", "finished_sending", "finished_recving", "failed_block_ids")


def check_fields(plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
    """Raise RunnerError for a result that holds what nobody would read, or tokens of requests not in the plan."""
    for name in NOT_BUILT:
        if getattr(output, name):
            raise RunnerError(f"the runner gave {name} in step {plan.step}, which is not supported yet")
    given = output.sampled_token_ids
    if given and (unknown := given.keys() - set(plan.req_ids)):
        raise RunnerError(f"the runner gave tokens for {sorted(unknown)} in step {plan.step}, not in the plan")
