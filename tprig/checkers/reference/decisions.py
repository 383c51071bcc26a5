"""Judges the decisions of one request along those that were found.

One wrong decision is reported once: what comes after it is judged for what it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tprig.checkers.reference.choice import Choice
from tprig.checkers.reference.judgement import Discrepancy, Subject
from tprig.checkers.reference.scope import Difference, Scope
from tprig.checkers.reference.verification import AcceptTest, RequestVerification
from tprig.checkers.wording import counted


def judge_decisions(
    scope: Scope, verification: RequestVerification, accepted: int
) -> Iterator[Discrepancy]:
    """Judge a request in which so many drafts were found accepted, and the token after them."""
    yield from _prefix(scope, verification, accepted)
    if verification.by_block:
        yield from _block(scope, verification, accepted)
    else:
        yield from _drafts(scope, verification, accepted)
    yield from _successor(scope, verification, accepted)


def _prefix(
    scope: Scope, verification: RequestVerification, accepted: int
) -> Iterator[Discrepancy]:
    found = scope.result.sampled[scope.index, :accepted]
    drafts = verification.drafts[:accepted]
    for step in map(int, np.flatnonzero(found != drafts)):
        unlike = Difference(f"the accepted draft {drafts[step]}", str(found[step]))
        yield scope.report(Subject.DECISIONS, step, unlike)


def _drafts(
    scope: Scope, verification: RequestVerification, accepted: int
) -> Iterator[Discrepancy]:
    tests = [verification.test(n) for n in range(min(accepted + 1, len(verification.drafts)))]
    scope.count(Subject.DECISIONS, len(tests), ambiguous=sum(test.ambiguous for test in tests))
    for step, test in enumerate(tests):
        if test.accepted != (step < accepted):
            draft = int(verification.drafts[step])
            yield scope.report(
                Subject.DECISIONS, step, _decision(test, draft, accepted=step < accepted)
            )


def _decision(test: AcceptTest, draft: int, *, accepted: bool) -> Difference:
    words = ("refused", "accepted")
    return Difference(
        f"draft {draft} {words[test.accepted]}",
        words[accepted],
        ambiguous=test.allows(accepted=accepted),
        margin=test.margin,
        band=test.band,
    )


def _block(scope: Scope, verification: RequestVerification, accepted: int) -> Iterator[Discrepancy]:
    """The longest prefix that is accepted counts, whatever the shorter ones do."""
    tests, expected = verification.block_tests, verification.accepted_length
    scope.count(Subject.DECISIONS, len(tests), ambiguous=sum(test.ambiguous for test in tests))
    if accepted == expected:
        return
    step = max(accepted, expected) - 1
    possible = accepted == 0 or tests[accepted - 1].possible
    unlike = Difference(
        f"{counted(expected, 'draft')} accepted",
        str(accepted),
        ambiguous=possible and not any(test.certain for test in tests[accepted:]),
        margin=tests[step].margin,
        band=tests[step].band,
    )
    yield scope.report(Subject.DECISIONS, step, unlike)


def _successor(
    scope: Scope, verification: RequestVerification, accepted: int
) -> Iterator[Discrepancy]:
    choice = verification.successor(accepted)
    found = int(scope.result.sampled[scope.index, accepted])
    scope.count(Subject.TOKENS, ambiguous=int(choice.ambiguous))
    if found != choice.winner:
        kind = "bonus" if accepted == len(verification.drafts) else "recovered"
        yield scope.report(Subject.TOKENS, accepted, _token(kind, choice, found))


def _token(kind: str, choice: Choice, found: int) -> Difference:
    return Difference(
        f"{kind} token {choice.winner}",
        str(found),
        ambiguous=choice.allows(found),
        margin=choice.margin(found),
        band=choice.band(found),
    )
