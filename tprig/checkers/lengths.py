"""Judges where each request's output begins and ends: what was asked for against what came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tprig.checkers.emitted import Emitted, ended, misplacements, place, refusals
from tprig.checkers.wording import counted
from tprig.evidence import Finding, Location, Request
from tprig.history import RunHistory


def length_findings(run: RunHistory, requests: Mapping[str, Emitted]) -> list[Finding]:
    """Gaps, missing ends, and ends that contradict `max_tokens` and the stop tokens."""
    findings = misplacements(run, requests)
    if run.workload is None:
        return findings
    asked = {request.id: request for request in run.workload.requests}
    messages: list[tuple[str, str]] = []
    for name, request in requests.items():
        if name not in asked:
            messages.append((name, "expected a request of the workload, found one it lacks"))
        elif not request.misplaced:
            messages += [(name, text) for text in _ends(run, asked[name], request)]
    messages += [(name, text) for name, text in _unended(run, asked, requests)]
    findings += [
        Finding(anomaly="output.tokens", message=text, where=_end(run, name, requests.get(name)))
        for name, text in messages
    ]
    return findings


def _end(run: RunHistory, name: str, request: Emitted | None) -> Location:
    if request is None:
        return Location(file=place(run, 1, name).file, run=run.id, request=name)
    row = request.rows[-1].position if request.rows else None
    return place(run, request.line, name, row)


def _unended(
    run: RunHistory, asked: Mapping[str, Request], requests: Mapping[str, Emitted]
) -> Iterator[tuple[str, str]]:
    """Requests that neither finished nor were refused, in a run that says that it is complete."""
    if not ended(run):
        return
    refused = refusals(run)
    for name in asked:
        request = requests.get(name)
        if name not in refused and (request is None or request.finish_reason is None):
            rows = len(request.rows) if request is not None else 0
            yield (
                name,
                f"expected a finish reason or a refusal, found neither after "
                f"{counted(rows, 'row')}: the run says that every request has ended",
            )


def _ends(run: RunHistory, asked: Request, request: Emitted) -> Iterator[str]:
    rows, limit = len(request.rows), asked.sampling.max_tokens
    if rows > limit:
        yield f"expected at most max_tokens = {limit} rows, found {rows}"
    if request.finish_reason == "length" and rows < limit and not _at_model_limit(run, asked, rows):
        yield (
            f"expected max_tokens = {limit} rows of a request that finished for its length, found "
            f"{rows}"
        )
    yield from _stops(asked, request)


def _at_model_limit(run: RunHistory, asked: Request, rows: int) -> bool:
    """True when the model's length explains the end, or nobody knows the model's length."""
    effective = run.engine.effective if run.engine is not None else None
    limit = effective.config.get("model.max_model_len") if effective is not None else None
    if limit is None or not limit.isdigit():
        return True
    return len(asked.prompt_token_ids) + rows >= int(limit)


def _stops(asked: Request, request: Emitted) -> Iterator[str]:
    """A stop token ends its request, and nothing else ends one with reason `stop` and an id."""
    stops = set(asked.sampling.stop_token_ids)
    last = len(request.rows) - 1
    for index, row in enumerate(request.rows):
        token = row.row.token_id
        if token in stops and (index < last or request.finish_reason not in ("stop", None)):
            yield (
                f"expected the output to end with stop token {token} at row {row.position}, found "
                f"{counted(last - index, 'row')} after it and finish reason {request.finish_reason}"
            )
            return
    reason = request.stop_reason
    if request.finish_reason == "stop" and isinstance(reason, int) and request.rows:
        token = request.rows[-1].row.token_id
        if token != reason:
            yield f"expected the last token to be the stop reason {reason}, found {token}"
