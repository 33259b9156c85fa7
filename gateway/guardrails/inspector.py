"""The inspector of the pipeline: which texts are looked at, by which duties, and what happens when that fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.errors import Unavailable
from gateway.flow.values import (
    Decision,
    EmbeddingRequest,
    GenerationParams,
    Inspection,
    ModelRequest,
    ModerationRequest,
)
from gateway.guardrails.actions import GuardrailActions, Tally, actions_of
from gateway.guardrails.answers import AnswerGuard
from gateway.guardrails.detectors.secrets import NAME as SECRETS
from gateway.guardrails.phrases import NAME as PHRASES
from gateway.guardrails.prompts import Prompts, constraints
from gateway.guardrails.timebox import Between, NotInspected, Timebox
from gateway.settings import GuardrailSettings

CLEAN = Inspection()
EVERYTHING = GuardrailActions(proven="flag", likely="flag", phrases="flag", closed=False)
GROUPS = {PHRASES: "prompt_injection", SECRETS: "secrets"}
"""Detector -> category of a verdict; all others find personal data."""
Verdict = Mapping[str, Mapping[str, float]]
STORED = GuardrailActions(proven="redact", likely="redact", phrases=None, closed=True)


class GuardrailInspector:
    """Implements `flow.ports.Inspector`. `close` at the end."""

    def __init__(self, settings: GuardrailSettings) -> None:
        self._timebox = Timebox(timeout_s=settings.timeout_ms / 1000, workers=settings.workers)

    async def inspect_input(self, request: ModelRequest, decision: Decision) -> Inspection:
        actions = actions_of(decision.obligations)
        if actions is None or isinstance(request, ModerationRequest):
            return CLEAN
        try:
            return await self._timebox.run(
                lambda check_deadline: Prompts(actions, check_deadline).inspect(request), size=_size(request)
            )
        except NotInspected as error:
            if actions.closed:
                raise unavailable(error) from None
            tally = Tally("in")
            tally.not_inspected("request")
            return Inspection("allow", tally.findings())

    async def verdicts(self, texts: Sequence[str]) -> tuple[Verdict, ...]:
        """What is in each text, whatever policy would make of it. Raises `Unavailable`."""
        try:
            return await self._timebox.run(
                lambda check_deadline: tuple([_verdict(text, check_deadline) for text in texts]),
                size=sum(map(len, texts)),
            )
        except NotInspected as error:
            raise unavailable(error) from None

    async def redacted(self, request: ModelRequest) -> ModelRequest | None:
        """What may be stored where policy asks for redacted content, whatever it asks for what the model reads. None:
        it could not be inspected, or cannot be rewritten (token ids)."""
        # What steers an answer is not stored.
        texts = request if isinstance(request, EmbeddingRequest) else replace(request, params=GenerationParams())
        try:
            seen = await self._timebox.run(
                lambda check_deadline: Prompts(STORED, check_deadline).inspect(texts), size=_size(texts)
            )
        except NotInspected:
            return None
        return None if seen.action == "block" else seen.request or texts

    def guard_output(self, request: ModelRequest, decision: Decision) -> AnswerGuard | None:
        actions = actions_of(decision.obligations)
        if actions is None or actions.proven is None or isinstance(request, EmbeddingRequest):
            return None
        grammar = request.params.grammar
        return AnswerGuard(
            actions, self._timebox, as_json=grammar is not None and grammar["type"] in ("json_object", "json_schema")
        )

    def close(self) -> None:
        self._timebox.close()


def _verdict(text: str, check_deadline: Between) -> Verdict:
    seen = Prompts(EVERYTHING, check_deadline).inspect(EmbeddingRequest("-", (text,)))
    found: dict[str, dict[str, float]] = {}
    for finding in seen.findings:
        group = GROUPS.get(finding.detector, "personal_data")
        kinds = found.setdefault(group, {})
        kinds[finding.category] = max(finding.score, kinds.get(finding.category, 0.0))
    return found


def _size(request: ModelRequest) -> int:
    """Characters to read."""
    return sum(map(len, (*request.texts, *constraints(request))))


def unavailable(error: NotInspected) -> Unavailable:
    return Unavailable(
        "Policy asks for an inspection of this content, and it could not be made.",
        code="guardrails_unavailable",
        hint="try again, with less text if it is long",
        detail=str(error),
    )
