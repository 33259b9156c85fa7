"""An answer on its way out: inspected as it grows, and let go as soon as it is safe. One guard per answer.

Where policy only flags, chunks pass at once and are read in passing. Where it redacts or blocks, a chunk carries what
its window has released: a word later than the model made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.errors import Unavailable
from gateway.flow.values import ChoiceEnd, Chunk, Delta, Finding, ToolCallDelta
from gateway.guardrails.actions import GuardrailActions, Tally
from gateway.guardrails.scan import scan
from gateway.guardrails.spans import JsonText, Span, mark, without
from gateway.guardrails.timebox import Between, NotInspected, Timebox
from gateway.guardrails.window import Released, Window, in_slices

AT_ONCE = 1024
"""Characters that are inspected without a thread: about a tenth of a millisecond."""
Channel = tuple[type[Delta], int]
"""Which part of a choice a delta goes on with: its kind, and the call where it is one."""


@dataclass(slots=True)
class Choice:
    latest: Delta
    window: Window = field(default_factory=lambda: Window(scan))
    json: JsonText = field(default_factory=JsonText)
    finished: bool = False
    waiting: dict[Channel, tuple[Window, JsonText]] = field(default_factory=dict)
    """Of the parts that others came between: a number may go on where they left off."""


class AnswerGuard:
    """Implements `flow.ports.OutputGuard`."""

    def __init__(self, actions: GuardrailActions, timebox: Timebox, *, as_json: bool = False) -> None:
        self._actions = actions
        self._timebox = timebox
        self._as_json = as_json
        self._choices: dict[int, Choice] = {}
        self._tally = Tally("out")
        self._given_up = False
        self.blocked: str | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._tally.findings()

    async def check(self, chunk: Chunk) -> tuple[Chunk, ...]:
        if isinstance(chunk, ChoiceEnd):
            delta = await self._delta(chunk.last, last=True)
            return (*delta[:-1], chunk if delta[-1] is chunk.last else replace(chunk, last=delta[-1]))
        return await self._delta(chunk, last=False) if isinstance(chunk, Delta) else (chunk,)

    async def _delta(self, delta: Delta, *, last: bool) -> tuple[Delta, ...]:
        rewrites = self._actions.rewrites
        if delta.logprobs and rewrites:
            delta = replace(delta, logprobs=())  # an upstream's, unasked: they name every token
        if not (delta.told or last):
            return (delta,)
        choice = self._choices.get(delta.index)
        if choice is None:
            choice = self._choices[delta.index] = Choice(delta)
        rest = () if delta.goes_on(choice.latest) else await self._turn(choice, delta)
        if isinstance(delta, ToolCallDelta):
            delta = self._named(delta)
        choice.latest, choice.finished = delta, choice.finished or last
        text = await self._through(choice, delta.text, last=last)
        if not rewrites and self.blocked is None:
            return (*rest, delta)
        return (*rest, replace(delta, text=text))

    def _named(self, delta: ToolCallDelta) -> ToolCallDelta:
        """A model can write anything as the name of a function, an upstream as the id of a call; both come whole."""
        if (category := self._hidden_in(delta.name)) is not None:
            delta = replace(delta, name=mark(category))
        if (category := self._hidden_in(delta.call_id, proven_only=True)) is not None:
            delta = replace(delta, call_id=f"{mark(category)}{delta.call}")
        return delta

    def _hidden_in(self, text: str | None, *, proven_only: bool = False) -> str | None:
        """The category that must not leave in it."""
        spans = [span for span in scan(text) if span.certain or not proven_only] if text else []
        acts = [(span, self._actions.act(span)) for span in spans]
        for span, act in acts:
            self._tally.span(span, act, "answer")
            if act == "block" and self.blocked is None:
                self.blocked = span.category
        return spans[0].category if any(act != "flag" for _, act in acts) else None

    async def flush(self) -> tuple[Chunk, ...]:
        """The rest of choices that a back end ended without a finish reason."""
        rest = list[Chunk]()
        for _, choice in sorted(self._choices.items()):
            if not choice.finished and self.blocked is None:
                choice.finished = True
                rest += await self._rest(choice)
        return tuple(rest)

    async def _rest(self, choice: Choice) -> tuple[Delta, ...]:
        """What is held of a part that has ended."""
        text = await self._through(choice, "", last=True)
        return (choice.latest.more(text),) if text and self._actions.rewrites else ()

    async def _turn(self, choice: Choice, delta: Delta) -> tuple[Delta, ...]:
        """From the part that grew to that of `delta`: what is held of the one, and the other as it was left."""
        rest = await self._rest(choice)
        choice.waiting[_channel(choice.latest)] = (choice.window, choice.json)
        choice.window, choice.json = choice.waiting.pop(_channel(delta), (Window(scan), JsonText()))
        return rest

    async def _through(self, choice: Choice, text: str, *, last: bool) -> str:
        window, held = choice.window, choice.window.held
        if self._given_up:
            return self._uninspected(choice, text)

        def work(check_deadline: Between) -> list[Released]:
            return list(in_slices(window, text, check_deadline, last=last))

        try:
            if len(text) + len(held) <= AT_ONCE:
                released = self._timebox.at_once(work)
            else:
                released = await self._timebox.run(work, size=len(text) + len(held))
        except NotInspected as error:
            self._give_up(error)
            choice.window = Window(scan, held)  # the thread may still be at work on the old one
            return self._uninspected(choice, text)
        return "".join([self._shown(choice, one) for one in released])

    def _shown(self, choice: Choice, released: Released) -> str:
        removed = list[Span]()
        for span in released.spans:
            act = self._actions.act(span)
            self._tally.span(span, act, "answer")
            if act == "block" and self.blocked is None:
                self.blocked = span.category
            if act != "flag":
                removed.append(span)
        cut = choice.json.without if self._is_json(choice) else without
        shown = cut(released.text, removed)
        return "" if self.blocked is not None else shown

    def _is_json(self, choice: Choice) -> bool:
        """Of the part that grows now: the arguments of a call always are."""
        return self._as_json or isinstance(choice.latest, ToolCallDelta)

    def _uninspected(self, choice: Choice, text: str) -> str:
        held, choice.window = choice.window.held, Window(scan)
        return held + text

    def _give_up(self, error: NotInspected) -> None:
        if self._actions.closed:
            raise Unavailable(
                "Policy asks for an inspection of this answer, and it could not be made.",
                code="guardrails_unavailable",
                detail=str(error),
            )
        self._given_up = True
        self._tally.not_inspected("answer")


def _channel(delta: Delta) -> Channel:
    return type(delta), delta.call if isinstance(delta, ToolCallDelta) else 0
