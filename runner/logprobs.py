"""Log-probabilities of the model's own distribution: of tokens that stand there, and of the likeliest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ..scheduler.logprobs import LogprobColumns, joined
from ..scheduler.plan import IntArray, SchedulerOutput
from .row_tables import RowTables
from .sampling_table import LOGPROBS, PROMPT_LOGPROBS
from .step_batch import StepBatch

PIECE = 64  # places of a prompt whose logits are in memory at once: 50 MB for 200,000 tokens


class SampledLogprobs:
    """Of the tokens that a step samples, for the requests that ask.

    Made before the sampler changes the logits, asked when the tokens are known.

    Args:
        logits: [samples, width], as the model gave them.
        sampled: int64 [samples], rows of the table.
    """

    def __init__(self, logits: torch.Tensor, rows: RowTables, sampled: IntArray) -> None:
        self._which = rows.sampling.asking(sampled, LOGPROBS)
        self._counts = rows.sampling.num_logprobs[sampled[self._which]]
        self._logits = logits.index_select(0, torch.from_numpy(self._which)).float() if len(self._which) else logits

    def of(self, tokens: IntArray) -> dict[int, LogprobColumns]:
        """By sample, for those who ask; a place each."""
        found: dict[int, LogprobColumns] = {}
        for count in np.unique(self._counts).tolist():
            (same,) = np.nonzero(self._counts == count)
            owners = self._which[same]
            all_alike = len(same) == len(self._which)
            logits = self._logits if all_alike else self._logits.index_select(0, torch.from_numpy(same))
            columns = logprobs_of(logits, tokens[owners], count)
            found |= {owner: columns.part(i, i + 1) for i, owner in enumerate(owners.tolist())}
        return found


def prompt_logprobs(
    plan: SchedulerOutput, batch: StepBatch, rows: RowTables, logits_at: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, LogprobColumns]:
    """Of the prompt tokens that stand behind those which the step computes, for the requests that ask.

    Args:
        logits_at: places in the batch to their logits, [places, width].

    Returns:
        by request, from the token behind the first computed one to the prompt's last.
    """
    table = rows.sampling
    asking = table.asking(plan.rows, PROMPT_LOGPROBS)
    if not len(asking):
        return {}
    counts = np.minimum(plan.num_tokens, rows.prompt[plan.rows] - 1 - plan.num_computed)
    found: dict[str, LogprobColumns] = {}
    for i in asking[counts[asking] > 0].tolist():
        row, first, count = int(plan.rows[i]), int(plan.num_computed[i]), int(counts[i])
        tokens = rows.tokens[row, first + 1 : first + 1 + count]
        wanted = int(table.num_prompt_logprobs[row])
        places = torch.arange(count) + int(batch.first_tokens[i])
        pieces = [
            logprobs_of(logits_at(places[at : at + PIECE]), tokens[at : at + PIECE], wanted)
            for at in range(0, count, PIECE)
        ]
        found[plan.req_ids[i]] = joined(pieces)
    return found


def logprobs_of(logits: torch.Tensor, tokens: IntArray, count: int) -> LogprobColumns:
    """At each place, of the token that stands there and of the ``count`` likeliest.

    A rank is one more than the tokens that are likelier.

    Args:
        logits: [places, width].
        tokens: int64 [places].
    """
    logits = logits.float()
    own = torch.from_numpy(tokens).unsqueeze(1)
    value = logits.gather(1, own)
    ids = torch.cat([own, torch.topk(logits, count, dim=-1).indices], 1)
    values = logits.log_softmax(-1).gather(1, ids)
    return LogprobColumns(
        width=1 + count,
        token_ids=ids.flatten().numpy(),
        # Rounding can make the likeliest a little more than certain; what has no probability stays a number.
        values=values.clamp_(torch.finfo(torch.float32).min, 0.0).flatten().numpy(),
        ranks=np.count_nonzero(logits.numpy() > value.numpy(), axis=-1).astype(np.int64) + 1,
    )
