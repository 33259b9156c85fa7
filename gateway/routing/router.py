"""Small or large, for requests that leave the choice to us. Pure: features in, a `RoutePlan` out.

Chooses only among the models that policy already permits; what it would have liked otherwise is said in the reason.
The weights are set by hand and checked offline (`benchmarks/routing.py`); they rank about as well as prompt length on
knowledge questions and better on open tasks, so treat the score as a sorting key, not as a probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from gateway.errors import InvalidRequest, NotFound
from gateway.flow.refusals import may_serve_tools, no_tools
from gateway.flow.values import CompletionRequest, EmbeddingRequest, ModelCard, ModelRequest, RoutePlan
from gateway.routing.features import Features, features_of, user_turns
from gateway.routing.language import LanguageDetector
from gateway.settings import RoutingSettings

ROUTER_VERSION = "complexity-1"
BIAS = -2.1
WEIGHTS = {
    "length": 4.0,
    "code": 2.5,
    "maths": 1.5,
    "technical": 2.0,
    "numbers": 0.7,
    "constraints": 1.5,
    "questions": 0.3,
    "turns": 0.8,
    "tools": 0.5,
    "structured": 0.5,
}
CHARS_PER_TOKEN = 4
"""Only to keep a prompt away from a window that it cannot fit; the exact count comes from the tokenizer later."""


def difficulty(features: Features) -> float:
    """0 to 1: how much the traits of a request speak for the large model."""
    total = BIAS + sum(weight * getattr(features, name) for name, weight in WEIGHTS.items())
    return 1.0 / (1.0 + exp(-total))


class ComplexityRouter:
    """Implements `flow.ports.Router` with one threshold on `difficulty`."""

    def __init__(self, settings: RoutingSettings, detector: LanguageDetector | None = None) -> None:
        """Without a `detector` nobody's languages are looked at."""
        self._threshold, self._detector = settings.threshold, detector

    def plan(self, request: ModelRequest, asked: ModelCard, permitted: Sequence[ModelCard]) -> RoutePlan:
        if not asked.virtual:
            return RoutePlan(asked.id, (asked,), "the model was asked for by name", router_version=ROUTER_VERSION)
        if isinstance(request, EmbeddingRequest):
            raise InvalidRequest(
                f"`{asked.id}` embeds nothing: vectors of two models cannot be compared.",
                code="unsupported_action",
                param="model",
                hint="name the model that embeds; GET /v1/models lists what each serves",
            )
        usable = [card for card in permitted if not card.virtual and card.tier and request.needs in card.actions]
        if not usable:
            raise NotFound(
                f"No model that you may use can serve `{asked.id}`.",
                code="model_not_found",
                param="model",
                hint="GET /v1/models lists the models you may use",
            )
        able = [card for card in usable if may_serve_tools(request, card)]
        if not able:
            raise no_tools(f"No model that you may use as `{asked.id}` calls tools.")
        language = self._language(request, able)
        able = [card for card in able if speaks(card, language)] or able
        features = features_of(request)
        score = difficulty(features)
        wanted = "large" if score >= self._threshold else "small"
        fitting = [card for card in able if _fits(request, card)] or [max(able, key=lambda c: c.context_window)]
        candidates = sorted(fitting, key=lambda card: card.tier != wanted)
        chosen = candidates[0]
        return RoutePlan(
            requested=asked.id,
            candidates=tuple(candidates),
            reason=self._reason(features, score, wanted, chosen, usable, able, fitting, language),
            route="large" if chosen.tier == "large" else "small",
            score=round(score, 4),
            router_version=ROUTER_VERSION,
            features=features.as_mapping(),
        )

    def _language(self, request: ModelRequest, cards: Sequence[ModelCard]) -> str | None:
        """Of what the user has written last, where some of the cards would care."""
        if self._detector is None or not any(card.languages for card in cards):
            return None
        turns = user_turns(request)
        return self._detector.detect(turns[-1]) if turns else None

    def _reason(
        self,
        features: Features,
        score: float,
        wanted: str,
        chosen: ModelCard,
        usable: Sequence[ModelCard],
        able: Sequence[ModelCard],
        fitting: Sequence[ModelCard],
        language: str | None,
    ) -> str:
        sign = ">=" if wanted == "large" else "<"
        scored = f"difficulty {score:.2f} {sign} {self._threshold:.2f}"
        if chosen.tier == wanted:
            return f"{wanted}: {scored}{_why(features) if wanted == 'large' else ''}"
        if all(card.tier != wanted for card in usable):
            return f"{chosen.tier}: no {wanted} model is permitted for you; {scored}"
        left = [card for card in usable if card.tier == wanted and card not in able]
        if left and all(card.tier != wanted for card in able):
            why = "calls no tools" if speaks(left[0], language) else f"does not speak `{language}`"
            return f"{chosen.tier}: the {wanted} model {why}; {scored}"
        if len(fitting) < len(able):
            return f"{chosen.tier}: the prompt does not fit the {wanted} model; {scored}"
        return f"{chosen.tier}: {scored}"


def speaks(card: ModelCard, language: str | None) -> bool:
    """Whether nothing is known against it."""
    return language is None or not card.languages or language in card.languages


def _why(features: Features) -> str:
    """The traits that weighed most, at most three."""
    shares = {name: weight * getattr(features, name) for name, weight in WEIGHTS.items()}
    top = sorted((name for name in shares if shares[name] >= 0.25), key=lambda name: -shares[name])[:3]
    return f" ({', '.join(top)})" if top else ""


def _fits(request: ModelRequest, card: ModelCard) -> bool:
    chars = 0 if isinstance(request, EmbeddingRequest) else sum(map(len, request.texts))
    if isinstance(request, CompletionRequest):
        chars = max(len(one) * (1 if isinstance(one, str) else CHARS_PER_TOKEN) for one in request.prompts)
    return chars // CHARS_PER_TOKEN + (request.params.max_tokens or 1) <= card.context_window
