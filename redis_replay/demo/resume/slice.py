"""One rank's share of a step: its slice of the batch, read from the store, and its gradients."""

from __future__ import annotations

from typing import Final

from redis_replay import TrainerRank
from redis_replay.demo.resume.exchange import Word
from redis_replay.demo.resume.learner import Arrays, Learner
from redis_replay.demo.resume.settings import GROUP_SIZE
from redis_replay.demo.rows import batch_from_rows
from redis_replay.demo.witness import Witness

_FIELDS: Final = ("input_ids", "generation_logprobs", "reward", "length")


async def slice_gradients(
    rank: TrainerRank, learner: Learner, word: Word, witness: Witness
) -> tuple[float, Arrays]:
    """Return loss and gradients of a rank's slice of a batch, which is whole groups.

    Raises:
        ClaimError, SlotError: the batch is not a live claim any more.
    """
    with witness.calling("slice", step=word.step, batch=word.batch) as found:
        meta = await rank.read_slice(word.batch)
        found["rows"] = meta.size
    with witness.calling("read", step=word.step, batch=word.batch):
        rows = await rank.samples.get_samples(meta, select_fields=_FIELDS)
    return learner.gradients(batch_from_rows(rows, group_size=GROUP_SIZE))
