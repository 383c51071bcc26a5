"""min-p, top-k and top-p with the tie rule of either of vLLM's backends.

A token whose fate float32 decides is marked `maybe`: nothing rests on it after that.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tprig.checkers.reference.call import TieRule
from tprig.checkers.reference.rows import (
    FLOAT32_TINY,
    FLOAT32_ZERO,
    ROUNDING,
    Bools,
    Ids,
    Quota,
    Reals,
    Row,
    sum_error,
)

TERNARY_SEARCH = 3.0**-18
"""What is left of the range of logits after the 18 rounds of the Triton path's top-k search."""
DUPLICATE = 1e-9
"""The Triton path takes logits that are this close for equal."""
PROBABILITY_SEARCH = 2.0**-17
"""How close to the edge of top-p, in units of the largest probability, the search of the Triton
path may stop: 18 halvings, and their last half."""
RATIO_SEARCH = 2.0**-9
"""The same, relative to the edge, of its search for small batches: 5 rounds in which a ratio of at
most 1e30 falls to its ninth root each."""


def apply_min_p(row: Row, min_p: float) -> Row:
    """Mask tokens less likely than `min_p` times the likeliest."""
    if min_p == 0.0 or not row.kept.any():
        return row
    top = row.value.max()
    offset = math.log(min_p)
    error = row.error[row.value == top].max() + ROUNDING * (abs(offset) + abs(top + offset))
    kept = row.kept & (row.value >= top + offset)
    near = row.kept & (np.abs(row.value - (top + offset)) <= row.error + error)
    if offset == 0.0:  # the threshold is the largest logit itself: its ties are exact
        near &= row.value != top
    return replace(row, kept=kept, maybe=row.maybe | near)


def apply_top_k(row: Row, top_k: int, rule: TieRule, *, settles: bool = True) -> Row:
    """Mask all but the `top_k` largest logits; ties at the edge follow the rule.

    With `settles` false ties at the edge stay open, if the rule is to keep exactly `top_k`: the
    Triton path lets some of them in again where it applies top-p in the same kernel.
    """
    ids = np.flatnonzero(row.present)
    if len(ids) <= top_k:
        return row
    value, error = row.value[ids], row.error[ids]
    edge = np.partition(value, len(ids) - top_k)[len(ids) - top_k]
    edge_error = error[value == edge].max()
    band = error + edge_error
    if rule is TieRule.EXACTLY_K:
        band = band + float(value.max() - value.min()) * TERNARY_SEARCH + DUPLICATE
    cluster = np.abs(value - edge) <= band
    above = (value > edge) & ~cluster
    room = top_k - int(above.sum())
    inside, undecided = above | cluster, np.zeros(len(ids), dtype=np.bool_)
    if room < int(cluster.sum()):
        if np.all((value[cluster] == edge) & (error[cluster] == edge_error)):
            inside = above | _tied(cluster, room, rule)
            if rule is TieRule.EXACTLY_K and not settles:
                undecided = cluster
        else:
            inside, undecided = value >= edge, cluster
    return _masked(row, ids, inside, undecided)


def _tied(cluster: Bools, room: int, rule: TieRule) -> Bools:
    """Of tokens that tie at the edge, those that are kept."""
    if rule is TieRule.KEEP_ALL:
        return cluster
    return cluster & (np.cumsum(cluster) <= room)


def _masked(row: Row, ids: Ids, inside: Bools, undecided: Bools) -> Row:
    """Keep those of the present tokens `ids` that are inside; `undecided` may go either way."""
    kept, maybe = np.zeros_like(row.kept), np.zeros_like(row.maybe)
    kept[ids] = row.kept[ids] & inside
    maybe[ids] = undecided | (row.maybe[ids] & inside)
    return replace(row, kept=kept, maybe=maybe)


def apply_top_p(row: Row, top_p: float, rule: TieRule) -> Row:
    """Mask the least likely tokens whose probabilities sum to at most `1 - top_p`.

    Called for every row of a batch in which some request has a `top_p` below 1. On the PyTorch
    path a row with `top_p` 1 then loses the tokens whose probability underflows to 0.
    """
    ids = np.flatnonzero(row.present)
    if not len(ids) or (rule is TieRule.EXACTLY_K and top_p == 1.0):
        return row
    order = np.argsort(row.value[ids], kind="stable")
    ranked = ids[order]
    below, error = _mass_below(row, ranked)
    limit = 1.0 - top_p
    if limit == 0.0:
        least, most = FLOAT32_ZERO, FLOAT32_TINY
        inside = below >= least
    else:
        least, most = limit - ROUNDING, limit + ROUNDING
        inside = below > limit
    undecided = (below + error > least) & (below - error <= most)
    inside[-1], undecided[-1] = True, False
    tied = _tied_across(row.value[ranked], row.error[ranked], inside)
    certain = not undecided.any()
    undecided |= tied | _like(row.value[ranked], row.error[ranked], undecided)
    if rule is TieRule.EXACTLY_K:
        undecided |= _unresolved(row.value[ranked], inside)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    masked = _masked(row, ids, inside[back], undecided[back])
    if rule is TieRule.EXACTLY_K or not (certain and tied.any()):
        return masked
    members = np.zeros_like(row.kept)
    members[ranked[tied]] = True
    return replace(masked, quota=Quota(members, int(inside[tied].sum())))


def _tied_across(value: Reals, error: Reals, inside: Bools) -> Bools:
    """Tokens that the edge parts and float32 may not: vLLM sorts equal ones in whichever order.

    The likeliest of all stays, but which of its equals that is depends on the order, too.
    """
    least = (value - error)[inside].min()
    most = (value + error)[~inside].max(initial=-np.inf)
    tied: Bools = np.where(inside, value - error <= most, value + error >= least)
    return tied


def _like(value: Reals, error: Reals, some: Bools) -> Bools:
    """Tokens that float32 may take for some of these: what is open of one is open of all."""
    least = (value - error).min(where=some, initial=np.inf)
    most = (value + error).max(where=some, initial=-np.inf)
    return np.asarray((value + error >= least) & (value - error <= most))


def _mass_below(row: Row, ranked: Ids) -> tuple[Reals, Reals]:
    """Probability of each ranked token and of all below it, and the error of that."""
    value, kept, certain = row.value[ranked], row.kept[ranked], row.certain[ranked]
    top = value[-1]
    weight = np.exp(value - top)
    total = float(weight[kept].sum())
    below = np.cumsum(np.where(kept, weight, 0.0)) / total
    spread = np.cumsum(weight * (row.error[ranked] + ROUNDING * (top - value))) / total
    error = spread + below * (spread[-1] + 2.0 * sum_error(len(ranked)) + 2.0 * ROUNDING)
    open_mass = float(weight[~certain].sum()) / total
    return below, error + open_mass


def _unresolved(value: Reals, inside: Bools) -> Bools:
    """Tokens about as likely as the least likely one that is kept, ties with it among them."""
    weight = np.exp(value - value[-1])
    edge = weight[int(np.argmax(inside))]
    near = np.abs(weight - edge) <= max(PROBABILITY_SEARCH, RATIO_SEARCH * edge)
    tied_apart = bool((~inside & near).any())
    return near if tied_apart else np.zeros_like(near)
