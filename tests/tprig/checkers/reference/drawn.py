"""Calls of the rejection sampler that nobody made: drawn from a seed and a few wishes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tprig.checkers.reference.call import (
    LogprobsMode,
    Request,
    SamplerCall,
    TieRule,
    Verification,
)

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class History:
    """What a request has said and heard before the call."""

    token_ids: npt.NDArray[np.int64]
    prompt_len: int


@dataclass(frozen=True, eq=False)
class Drawn:
    """A call, and what vLLM keeps of its requests besides."""

    call: SamplerCall
    histories: tuple[History, ...]


@dataclass(frozen=True)
class Wishes:
    """What decides a call: hypothesis draws one of these, and shrinks it when the call fails."""

    seed: int = 0
    requests: int = 1
    steps: int = 1
    vocab_size: int = 17
    logits: str = "normal"
    drafts: str = "greedy"
    """`greedy` (one-hot), `near` the target, `far` from it, `same`, or `narrow`er vocabulary."""
    verification: Verification = Verification.STANDARD
    temperature: str = "plain"
    features: frozenset[str] = field(default_factory=frozenset)
    tie_rule: TieRule = TieRule.KEEP_ALL
    logprobs_mode: LogprobsMode = LogprobsMode.PROCESSED_LOGPROBS


FEATURES = (
    "top_k", "top_p", "min_p", "penalties", "allowed", "bias", "min_tokens", "bad_words",
    "prefill", "invalid", "chunks", "replay", "fp64", "short",
)  # fmt: skip
"""What a call may contain, each in about half of its requests."""

TEMPERATURES = {
    "plain": (0.7, 1.0, 1.3),
    "greedy": (0.0,),
    "mixed": (0.0, 1.0, 0.5),
    "extreme": (1e-4, 0.01, 50.0, 1e4, 0.0),
}


def draw(wishes: Wishes) -> Drawn:
    """The call that these wishes describe; the same for the same wishes."""
    return _Draw(wishes).drawn()


class _Draw:
    def __init__(self, wishes: Wishes) -> None:
        self.wishes = wishes
        self.rng = np.random.default_rng(wishes.seed)

    def wants(self, feature: str) -> bool:
        """Whether one request shall have it."""
        return feature in self.wishes.features and bool(self.rng.random() < 0.6)

    def drawn(self) -> Drawn:
        wishes, rng = self.wishes, self.rng
        most = wishes.steps + 1
        rows = np.full(wishes.requests, most)
        if "short" in wishes.features:
            rows = rng.integers(1, most + 1, wishes.requests)
        boundaries = np.concatenate([[0], np.cumsum(rows)])
        histories = [self._history() for _ in rows]
        # A request whose prompt is not done yet has one row, and one whose prompt came from
        # elsewhere has placeholders for drafts.
        phases = [rng.choice(["early", "placeholders"]) if self.wants("prefill") else "decode"
                  for _ in rows]  # fmt: skip
        logits = np.stack([self._logits() for _ in range(boundaries[-1])])
        draft_logits = self._draft_logits(logits, boundaries)
        first = np.repeat([len(h.token_ids) - 1 for h in histories], rows)
        local = np.arange(len(logits)) - np.repeat(boundaries[:-1], rows)
        slots = rng.permutation(wishes.requests + 2)[: wishes.requests]
        call = SamplerCall(
            logits=logits,
            cu_num_logits=boundaries,
            input_ids=self._input_ids(logits, draft_logits, boundaries),
            positions=first + local,
            idx_mapping=slots,
            expanded_idx_mapping=np.repeat(slots, rows),
            expanded_local_pos=local,
            requests=tuple(
                self._request(history, phase, int(count))
                for history, phase, count in zip(histories, phases, rows, strict=True)
            ),
            num_speculative_steps=wishes.steps,
            tie_rule=wishes.tie_rule,
            draft_logits=draft_logits,
            invalid_drafts=rng.random(len(logits)) < 0.2 if self.wants("invalid") else None,
            verification=wishes.verification,
            synthetic_rates=self._rates(),
            logprobs_mode=wishes.logprobs_mode,
            fp64_gumbel="fp64" in wishes.features,
            max_chunk_logits=int(rng.integers(1, len(logits) + 1))
            if "chunks" in wishes.features
            else None,
            replay="replay" in wishes.features,
        )
        return Drawn(call, tuple(histories))

    def _history(self) -> History:
        length = int(self.rng.integers(2, 40))
        # Few different tokens: bad words and penalties want them again.
        tokens = self.rng.integers(0, min(self.wishes.vocab_size, 23), length)
        return History(tokens, int(self.rng.integers(1, length)))

    def _logits(self) -> Logits:
        rng, size = self.rng, self.wishes.vocab_size
        kind = self.wishes.logits
        if kind == "mixed":
            kind = str(rng.choice(["normal", "ties", "peaked", "masked", "neighbours", "void"]))
        values = rng.normal(scale=3.0, size=size).astype(np.float32)
        if kind == "ties":
            values = np.round(values)
        elif kind == "flat":
            values = np.full(size, 1.5, dtype=np.float32)
        elif kind == "peaked":
            values[rng.integers(size)] = 40.0
        elif kind == "masked":
            values[rng.random(size) < rng.choice([0.2, 0.9])] = -np.inf
        elif kind == "neighbours":
            # Some are one step of float32 apart.
            steps = rng.integers(0, 2, size).astype(np.float32)
            values = np.nextafter(np.round(values), np.round(values) + steps).astype(np.float32)
        elif kind == "void":
            values[:] = -np.inf
        return values

    def _draft_logits(self, logits: Logits, boundaries: npt.NDArray[np.int64]) -> Logits | None:
        kind, steps, size = self.wishes.drafts, self.wishes.steps, self.wishes.vocab_size
        if kind == "greedy":
            return None
        width = size - size // 5 if kind == "narrow" else size
        drafts = self.rng.normal(scale=3.0, size=(self.wishes.requests, steps, width))
        for request in range(self.wishes.requests):
            for step in range(min(steps, int(np.diff(boundaries)[request]) - 1)):
                target = logits[boundaries[request] + step, :width]
                if kind == "same":
                    drafts[request, step] = target
                elif kind != "far":
                    drafts[request, step] = np.where(np.isfinite(target), target, -3.0)
                    drafts[request, step] += self.rng.normal(scale=0.5, size=width)
                if self.wishes.logits == "ties" and kind != "same":
                    drafts[request, step] = np.round(drafts[request, step])
        return drafts.astype(np.float32)

    def _input_ids(
        self, logits: Logits, drafts: Logits | None, boundaries: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Drafts are mostly likely ones, some of them arbitrary, few of them placeholders."""
        width = self.wishes.vocab_size if drafts is None else drafts.shape[-1]
        ids = self.rng.integers(0, width, len(logits))
        for request, (start, end) in enumerate(itertools.pairwise(boundaries)):
            for step in range(end - start - 1):
                source = logits[start + step, :width] if drafts is None else drafts[request, step]
                if self.rng.random() < 0.8:
                    noise = self.rng.gumbel(size=width)
                    ids[start + step + 1] = int(np.argmax(source + noise))
                elif self.rng.random() < 0.1:
                    ids[start + step + 1] = -1
        return ids

    def _rates(self) -> npt.NDArray[np.float32] | None:
        if self.wishes.verification is not Verification.SYNTHETIC:
            return None
        # vLLM is told the products: quarters come back exactly.
        rates = self.rng.choice([1.0, 0.5, 0.25], self.wishes.steps)
        return np.asarray(rates, dtype=np.float32)

    # --- one request ------------------------------------------------------------------------------

    def _request(self, history: History, phase: str, rows: int) -> Request:
        length = len(history.token_ids)
        prefill = {"decode": min(history.prompt_len, length - 1), "early": length + rows + 3,
                   "placeholders": length}[phase]  # fmt: skip
        request = Request(
            temperature=_float32(self.rng.choice(TEMPERATURES[self.wishes.temperature])),
            top_k=self.wishes.vocab_size,
            top_p=1.0,
            min_p=0.0,
            seed=int(self.rng.integers(-(2**63), 2**63 - 1)),
            num_logprobs=int(self.rng.integers(-1, 5)),
            prefill_len=prefill,
            seq_len=length + rows - 1,
            output_token_ids=history.token_ids[history.prompt_len :],
            min_len=history.prompt_len,
        )
        return replace(request, **self._filters(), **self._biases(history), **self._words(history),
                       **self._penalties(history))  # fmt: skip

    def _filters(self) -> dict[str, Any]:
        rng, size = self.rng, self.wishes.vocab_size
        chosen: dict[str, Any] = {}
        if self.wants("top_k"):
            widths = [1, 2, 5, size // 2, size - 1, 50, 2100]
            chosen["top_k"] = int(min(size, max(1, rng.choice(widths))))
        if self.wants("top_p"):
            chosen["top_p"] = _float32(rng.choice([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0]))
        if self.wants("min_p"):
            chosen["min_p"] = _float32(rng.choice([1e-8, 0.02, 0.1, 0.5, 1.0]))
        return chosen

    def _biases(self, history: History) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        if self.wants("allowed"):
            chosen["allowed_token_ids"] = self._ids(1, 12)
        if self.wants("bias"):
            ids = self._ids(1, 6)
            bias = self.rng.choice([-100.0, -1.0, 0.3, 1.0, 5.0], len(ids))
            chosen |= {"bias_token_ids": ids, "bias": bias.astype(np.float32)}
        if self.wants("min_tokens"):
            chosen["stop_token_ids"] = self._ids(1, 5)
            chosen["min_len"] = len(history.token_ids) + int(self.rng.integers(0, 5))
            chosen["restore_when_all_masked"] = bool(self.rng.random() < 0.5)
        return chosen

    def _words(self, history: History) -> dict[str, Any]:
        if not self.wants("bad_words"):
            return {}
        tail = history.token_ids[history.prompt_len :][-1:]
        words = [np.concatenate([tail, self._ids(1, 1)]), self._ids(1, 1), self._ids(2, 2)]
        return {"bad_words": tuple(words)}

    def _ids(self, fewest: int, most: int) -> npt.NDArray[np.int64]:
        size = self.wishes.vocab_size
        count = int(self.rng.integers(fewest, most + 1))
        return self.rng.choice(size, min(count, size), replace=False)

    def _penalties(self, history: History) -> dict[str, Any]:
        if not self.wants("penalties"):
            return {}
        rng, size = self.rng, self.wishes.vocab_size
        prompt, output = np.split(history.token_ids, [history.prompt_len])
        mask = np.zeros(size, dtype=np.bool_)
        mask[prompt] = True
        return {
            "repetition_penalty": _float32(rng.choice([1.0, 1.1, 0.5, 2.0])),
            "frequency_penalty": _float32(rng.choice([0.0, 0.1, -1.5, 2.0])),
            "presence_penalty": _float32(rng.choice([0.0, 0.3, -0.5])),
            "prompt_mask": mask,
            "output_counts": np.bincount(output, minlength=size),
        }


def _float32(value: float) -> float:
    return float(np.float32(value))
