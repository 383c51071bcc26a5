"""One call of vLLM's rejection sampler, as plain arrays: what it read and what it returned.

Shapes are written with R requests in batch order, N rows of logits (`cu_num_logits[-1]`), K
speculative steps and V tokens of the target's vocabulary. A request with d drafts has d + 1 rows:
row j verifies draft j + 1 of the request, and the last row gives the bonus token.

Everything that vLLM keeps in slots of its persistent state is given here by request, in batch
order; the slots themselves (`idx_mapping`) remain as evidence of the layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Integer = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class TieRule(Enum):
    """Which of vLLM's filters applied top-k and top-p, and so what becomes of ties."""

    KEEP_ALL = "keep-all"
    """The PyTorch path: everything that ties with the k-th token is kept."""
    EXACTLY_K = "exactly-k"
    """The Triton path: exactly k are kept; of ties at the edge, those of lowest token id."""


class Verification(Enum):
    """How drafts are verified: vLLM's `rejection_sample_method`."""

    STANDARD = "standard"
    BLOCK = "block"
    SYNTHETIC = "synthetic"


class LogprobsMode(Enum):
    """What the scores of tokens are: vLLM's `logprobs_mode`."""

    RAW_LOGITS = "raw_logits"
    RAW_LOGPROBS = "raw_logprobs"
    PROCESSED_LOGITS = "processed_logits"
    PROCESSED_LOGPROBS = "processed_logprobs"


@dataclass(frozen=True, eq=False)
class Request:
    """The sampling state of one request, as the call read it.

    Absent arrays are None. The floats are those of vLLM's float32 state.
    """

    temperature: float
    """0 is greedy."""
    top_k: int
    """V where top-k does not apply."""
    top_p: float
    min_p: float
    seed: int
    """int64, also for a request that brought no seed: vLLM draws one."""
    num_logprobs: int = -1
    """Logprobs asked for besides the sampled token's; -1 for none at all."""

    prefill_len: int = 0
    """Tokens of the latest fill; the request samples nothing while `seq_len < prefill_len`."""
    seq_len: int = 0

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    prompt_mask: Bool | None = None
    """[V] tokens of the prompt; needed where `repetition_penalty` is not 1."""
    output_counts: Integer | None = None
    """[V] how often each token was emitted before this call; needed where any penalty applies."""

    allowed_token_ids: Integer | None = None
    bias_token_ids: Integer | None = None
    bias: Float | None = None
    """[len(bias_token_ids)] added to those tokens' logits."""
    stop_token_ids: Integer | None = None
    """Masked while the sequence is shorter than `min_len`; None where min_tokens is 0."""
    min_len: int = 0
    """Prompt length plus min_tokens."""
    restore_when_all_masked: bool = False
    """Stop tokens come back where masking them leaves nothing (structured outputs)."""

    bad_words: tuple[Integer, ...] = ()
    """Token ids of each bad word."""
    output_token_ids: Integer | None = None
    """Tokens emitted before this call (`all_token_ids[prompt_len:total_len]`); bad words of more
    than one token need them."""


@dataclass(frozen=True, eq=False)
class SamplerCall:
    """Everything that one call of `RejectionSampler.__call__` reads."""

    logits: Float
    """[N, V] raw target logits; narrower types are widened to float32, which is exact."""
    cu_num_logits: Integer
    """[R + 1] boundaries of the requests' rows, from 0 to N."""
    input_ids: Integer
    """[N] `input_ids[logits_indices]`: the last sampled token, then the drafts."""
    positions: Integer
    """[N] `positions[logits_indices]`."""
    idx_mapping: Integer
    """[R] the requests' slots."""
    expanded_idx_mapping: Integer
    """[N] each row's slot."""
    expanded_local_pos: Integer
    """[N] each row's number within its request."""
    requests: tuple[Request, ...]
    """[R] in batch order."""
    num_speculative_steps: int
    """K."""
    tie_rule: TieRule
    draft_logits: Float | None = None
    """[R, K, V'] before temperature, V' <= V possible; None for greedy drafts (one-hot)."""
    invalid_drafts: Bool | None = None
    """[N] drafts that verification must refuse, by the row that holds them in `input_ids`."""
    verification: Verification = Verification.STANDARD
    synthetic_rates: Float | None = None
    """[K] conditional acceptance rates; with `Verification.SYNTHETIC` only."""
    logprobs_mode: LogprobsMode = LogprobsMode.PROCESSED_LOGPROBS
    fp64_gumbel: bool = False
    max_chunk_logits: int | None = None
    """Most rows of one verification chunk; None where one chunk held the batch."""
    replay: bool = False
    """Whether the call returned supports (`return_sampling_mask`)."""
    unmodelled: tuple[str, ...] = ()
    """Stages that were active and that the reference does not know (a thinking budget, custom
    logits processors, a watermark, adaptive verification): nothing can be judged then."""

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.logits.shape[1])

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.requests)


@dataclass(frozen=True, eq=False)
class SamplerResult:
    """What the call returned; None where it returned nothing of the kind."""

    sampled: Integer
    """[R, K + 1]; initialised up to what was sampled before the prefill correction."""
    num_sampled: Integer
    """[R]"""
    num_rejected: Integer
    """[R]"""
    logprob_token_ids: Integer | None = None
    """[N, 1 + n]: the sampled token (0 in rows that emit nothing), then the n best."""
    logprobs: Float | None = None
    """[N, 1 + n]"""
    ranks: Integer | None = None
    """[N] of the first column: how many tokens score at least as much."""
    supports: tuple[tuple[Integer, ...], ...] | None = field(default=None)
    """[R][num_sampled before the prefill correction] token ids, ascending."""
    processed_logits: Float | None = None
    """[N, V]"""
