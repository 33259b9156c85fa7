"""Plans steps: which sequence computes how many tokens, in which slot and blocks. No torch, text or threads.

Two verbs: `schedule` plans one step under one token budget (running first, decodes before prefill chunks; waiting only
if nobody was preempted), `update` applies its result. Preemption is recompute: blocks go, tokens stay.

Admission: a sequence starts only if all its known tokens fit beside what running sequences still need for theirs plus
one block each, so none is admitted by chunk and then preempted for ever.
"""

from __future__ import annotations

import logging
from collections import abc
from collections.abc import Mapping

from engine.config import EngineConfig
from engine.errors import EngineFault
from engine.kv_cache.block_lifetimes import BlockWatch
from engine.kv_cache.manager import KVManager
from engine.requests import FinishReason
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.pacing import Pacer
from engine.scheduling.plan import Plan, PromptPosition, SequenceUpdate
from engine.scheduling.policy import make_policy
from engine.scheduling.stopping import ending_of
from engine.scheduling.waiting import WaitingQueues
from engine.sequence import Kind, Sequence, Status
from engine.step import Step, StepResult, Work

log = logging.getLogger(__name__)


class Scheduler:
    def __init__(
        self,
        config: EngineConfig,
        *,
        num_blocks: int,
        block_size: int,
        eos_token_ids: frozenset[int] = frozenset(),
        watch: BlockWatch | None = None,
    ) -> None:
        self._config = config
        self._eos = eos_token_ids
        self.kv = KVManager(num_blocks, block_size, config.enable_prefix_caching, watch)
        self.policy = make_policy(config.scheduling_policy, config.starvation_bound_s)
        self.running: list[Sequence] = []
        self.waiting = WaitingQueues(self.policy.key)
        self.num_preemptions = 0
        self._ended: list[Sequence] = []
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._freed_slots: list[int] = []
        self._deadlines = Deadlines()
        self._living: dict[str, int] = {}
        self._step_id = 0
        self._pacer = Pacer(config.mixed_step_factor)
        self._scheduled_at = 0.0

    # -- sequences come and go ---------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a validated sequence (`serving.validation`): its prompt and answer fit the window and the pool."""
        share = sequence.share_key
        if self._living.get(share, 0) == 0:
            self.policy.joined(sequence)
        self._living[share] = self._living.get(share, 0) + 1
        self.waiting.push(sequence)
        self._deadlines.watch(sequence)

    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_reason: str | int | None = None, now: float | None = None
    ) -> bool:
        """End a sequence in any state and free what it holds. Idempotent: False when it had ended before."""
        if sequence.status is Status.FINISHED:
            return False
        was_running = sequence.status is Status.RUNNING
        sequence.status = Status.FINISHED
        sequence.finish_reason, sequence.stop_reason, sequence.finished_at = reason, stop_reason, now
        if was_running:
            self._release_slot(sequence)
        else:
            self.waiting.discard(sequence)
        share = sequence.share_key
        self._living[share] -= 1
        if self._living[share] == 0:
            del self._living[share]
            self.policy.left(share)
        return True

    def stop_at(self, sequence: Sequence, stop: str, now: float) -> None:
        """Its text reached a stop string, possibly with the very token that ended it for another reason."""
        self.finish(sequence, FinishReason.STOP, stop, now)
        sequence.finish_reason, sequence.stop_reason = FinishReason.STOP, stop

    def expire(self, now: float) -> None:
        """End who is past its deadline; a step does it first, an engine that makes none has to ask."""
        for sequence in self._deadlines.passed(now):
            if self.finish(sequence, FinishReason.DEADLINE, "deadline", now):
                self._ended.append(sequence)

    def take_ended(self) -> list[Sequence]:
        """Sequences that the scheduler ended by itself (deadline, capacity) since the last call."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0 or bool(self._ended)

    @property
    def living_per_share(self) -> Mapping[str, int]:
        return self._living

    # -- one step ----------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Step:
        """Plan one step at monotonic time `now`. May preempt, admit, and end sequences past their deadline."""
        self.expire(now)
        self._scheduled_at = self.kv.watch.now = now
        plan = Plan(self._config.max_num_batched_tokens)
        nobody_preempted = self._plan_running(plan)
        if nobody_preempted and len(self.waiting):
            self._plan_waiting(plan, now)
            self._top_up(plan)
        if not plan.new_tokens:
            return Step(self._step_id, ())
        self._step_id += 1
        plan.separate_suspects(self._step_id)
        freed, self._freed_slots = tuple(self._freed_slots), []
        return Step(self._step_id, plan.to_work(), freed)

    def update(self, step: Step, result: StepResult, now: float) -> list[SequenceUpdate]:
        """Apply a result: count tokens, publish full blocks, append samples, end what is done.

        A sequence that ended or was preempted since `schedule` is left alone. A missing sample is its fault.
        """
        counts = [work.num_new for work in step.work]
        decodes = counts.count(1)
        self._pacer.observe(decodes, sum(counts) - decodes, now - self._scheduled_at)
        advances = []
        for work in step.work:
            sequence = work.sequence
            if not isinstance(sequence, Sequence) or sequence.status is not Status.RUNNING:
                continue
            advance = self._advance(sequence, work, result, now)
            if advance is not None:
                advances.append(advance)
        return advances

    def _advance(self, sequence: Sequence, work: Work, result: StepResult, now: float) -> SequenceUpdate | None:
        """None where the step gave nothing to tell: a chunk of a prompt."""
        slot, _, start, count, sample, _, _, pool = work
        error = result.faults.get(slot)
        if error is None and sample and slot not in (result.pooled if pool else result.tokens):
            error = EngineFault("the runner returned nothing for this sequence")
        if error is not None:
            self.fail(sequence, now)
            return SequenceUpdate(sequence, start, error=error)
        sequence.num_computed += count
        if self.kv.caching and sequence.num_computed // self.kv.block_size > sequence.num_registered:
            self.kv.commit(sequence)
        prompt_logprobs = result.prompt_logprobs.get(slot)
        if sample:
            return self._sampled(sequence, work, result, prompt_logprobs, now)
        return None if prompt_logprobs is None else SequenceUpdate(sequence, start, None, prompt_logprobs)

    def fail(self, sequence: Sequence, now: float) -> None:
        """End with `error`; nobody else may hit the cached blocks of a sequence that failed."""
        self.kv.invalidate(sequence)
        self.finish(sequence, FinishReason.ERROR, None, now)

    def _sampled(
        self,
        sequence: Sequence,
        work: Work,
        result: StepResult,
        prompt_logprobs: abc.Sequence[PromptPosition] | None,
        now: float,
    ) -> SequenceUpdate:
        slot, start = work.slot, work.num_computed
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        sequence.want_prompt_logprobs = False
        if sequence.kind is not Kind.GENERATE:
            self.finish(sequence, FinishReason.STOP, None, now)
            return SequenceUpdate(sequence, start, result.tokens.get(slot), prompt_logprobs, result.pooled.get(slot))
        if sequence.max_tokens == 0:
            self.finish(sequence, FinishReason.LENGTH, None, now)
            return SequenceUpdate(sequence, start, None, prompt_logprobs)
        token = result.tokens[slot]
        try:
            if sequence.grammar is not None:
                sequence.grammar.accept(token.token_id)
            sequence.token_ids.append(token.token_id)
            ending = ending_of(sequence, self._eos)
        except Exception as error:
            log.exception("a grammar failed", extra={"request_id": sequence.request_id})
            self.fail(sequence, now)
            return SequenceUpdate(sequence, start, None, prompt_logprobs, error=error)
        self.policy.charge(sequence, 0, 1)
        if ending is not None:
            self.finish(sequence, *ending, now)
        return SequenceUpdate(sequence, start, token, prompt_logprobs)

    # -- planning ----------------------------------------------------------------------------------------------------

    def _plan_running(self, plan: Plan) -> bool:
        """Decodes first, then prefill chunks, each in admission order. False when somebody was preempted."""
        before = self.num_preemptions
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for sequence in self.running:
            (decodes if sequence.remaining == 1 else prefills).append(sequence)
        plan.most_prefill = self._most_prefill(len(decodes), len(prefills) + len(self.waiting))
        half = plan.budget // 2 if self.policy.leaves_room and len(self.waiting) else 0
        for sequence in decodes:
            if plan.budget <= 0:
                break
            if sequence.status is Status.RUNNING and self._make_room(sequence, len(sequence.token_ids), plan):
                plan.put_decode(sequence)
        for sequence in prefills:
            if plan.budget <= 0:
                break
            if sequence.status is not Status.RUNNING:
                continue
            count = self._chunk(sequence.remaining, plan)
            if half:
                count = min(count, max(0, half - plan.prefill_tokens))
            if count > 0 and self._make_room(sequence, sequence.num_computed + count, plan):
                plan.put(sequence, count)
        return self.num_preemptions == before

    def _top_up(self, plan: Plan) -> None:
        """Give running prefills the budget that waiting requests left. Preempts nobody."""
        for sequence in [s for s in self.running if s.remaining > 1]:
            planned = plan.new_tokens.get(sequence, 0)
            plan.refund(sequence)
            count = max(planned, self._chunk(sequence.remaining, plan))
            if count > planned and not self.kv.extend(sequence, sequence.num_computed + count):
                count = planned
            if count:
                plan.put(sequence, count)

    def _chunk(self, remaining: int, plan: Plan) -> int:
        count = min(remaining, plan.budget)
        if remaining > 1:
            if self._config.long_prefill_token_threshold:
                count = min(count, self._config.long_prefill_token_threshold)
            count = min(count, max(0, plan.most_prefill - plan.prefill_tokens))
        return count

    def _most_prefill(self, decodes: int, prefills: int) -> int:
        """Prefill tokens of a step in which so many decode and so many wait for their first token."""
        most = self._config.max_num_batched_tokens
        if not decodes:
            return most
        caps = (self._config.prefill_tokens_beside_decode, self._pacer.most_prefill_tokens(decodes, prefills))
        return min((cap for cap in caps if cap), default=most)

    def _make_room(self, sequence: Sequence, num_tokens: int, plan: Plan) -> bool:
        """Extend the table, preempting by policy while blocks are short; False when the sequence itself gave way."""
        if num_tokens <= len(sequence.block_table) * self.kv.block_size:
            return True
        while True:
            over = self._exceeds_share_blocks(sequence, num_tokens)
            if not over and self.kv.extend(sequence, num_tokens):
                return True
            candidates = [s for s in self.running if s.share_key == sequence.share_key] if over else self.running
            victim = self.policy.victim(candidates)
            self._preempt(victim, plan)
            if victim is sequence:
                return False

    def _plan_waiting(self, plan: Plan, now: float) -> None:
        """Admit in policy order until budget, slots or blocks end. Who is set aside does not block the others."""
        aside: list[Sequence] = []
        full_shares: set[str] = set()
        computing = self._prefix_blocks_being_computed()
        reserve = sum(max(0, self.kv.blocks_for(s.num_tokens) - len(s.block_table)) + 1 for s in self.running)
        while plan.budget > 0:
            heads = self.waiting.heads(full_shares)
            if not heads:
                break
            sequence = self.policy.choose(heads, now)
            oldest = self.waiting.oldest(sequence.share_key)
            if sequence.preemptions == 0 and oldest not in aside and self.policy.is_overdue(oldest, now):
                sequence = oldest
            if self._share_is_full(sequence):
                full_shares.add(sequence.share_key)
                continue
            hits = self.kv.lookup(sequence)
            next_key = self.kv.next_key(sequence, len(hits))
            if next_key is not None and next_key in computing:
                self.waiting.pop(sequence)
                aside.append(sequence)
                continue
            cached = len(hits) * self.kv.block_size
            count = self._chunk(sequence.num_tokens - cached, plan)
            if count <= 0:
                break
            if not self.kv.fits(sequence, hits, reserve):
                self._refuse_if_hopeless(sequence, plan, now)
                break
            if not self._free_slots and not self._displace_for(sequence, plan):
                break
            self.waiting.pop(sequence)
            self._admit(sequence, hits, now)
            self.kv.extend(sequence, cached + count)
            plan.put(sequence, count)
            reserve += self.kv.blocks_for(sequence.num_tokens) - len(sequence.block_table) + 1
            if next_key is not None:
                computing.add(next_key)
        for sequence in aside:
            self.waiting.push(sequence)

    def _admit(self, sequence: Sequence, hits: list[int], now: float) -> None:
        self.kv.admit(sequence, hits)
        sequence.status = Status.RUNNING
        sequence.slot = self._free_slots.pop()
        sequence.fresh = True
        self.running.append(sequence)
        self.policy.admitted(sequence, now)
        if sequence.num_cached < 0:
            sequence.num_cached = sequence.num_computed
            sequence.admitted_at = now
            self.policy.charge(sequence, sequence.num_tokens - sequence.num_computed, 0)

    def _prefix_blocks_being_computed(self) -> set[bytes]:
        """Keys of the block each running prefill works on: who waits for the same block waits for its result."""
        keys = (self.kv.next_key(s, s.num_computed // self.kv.block_size) for s in self.running if s.remaining > 1)
        return {key for key in keys if key is not None}

    def _share_is_full(self, sequence: Sequence) -> bool:
        config, share = self._config, sequence.share_key
        if config.max_seqs_per_share is not None:
            running = sum(1 for s in self.running if s.share_key == share)
            if running >= config.max_seqs_per_share:
                return True
        return self._exceeds_share_blocks(sequence, sequence.num_tokens)

    def _exceeds_share_blocks(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether its share would hold too many blocks with `num_tokens`; a shared block counts for every holder."""
        limit = self._config.max_blocks_per_share
        if limit is None:
            return False
        others = (s for s in self.running if s.share_key == sequence.share_key and s is not sequence)
        return sum(self.kv.blocks_for(s.num_tokens) for s in others) + self.kv.blocks_for(num_tokens) > limit

    def _displace_for(self, sequence: Sequence, plan: Plan) -> bool:
        victim = self.policy.displace(sequence, self.running)
        if victim is None:
            return False
        victim.displaced = True
        self._preempt(victim, plan)
        return True

    def _refuse_if_hopeless(self, sequence: Sequence, plan: Plan, now: float) -> None:
        """Nothing runs and it still does not fit: it never will. Validation keeps such requests out."""
        if not self.running and not plan.new_tokens:
            self.finish(sequence, FinishReason.ERROR, "kv_capacity", now)
            self._ended.append(sequence)

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        plan.refund(sequence)
        self._release_slot(sequence)
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self.num_preemptions += 1
        self.waiting.push(sequence)

    def _release_slot(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.num_prefilled = sequence.prefilled
        self.kv.release(sequence)
        self._free_slots.append(sequence.slot)
        self._freed_slots.append(sequence.slot)
        sequence.slot = -1

    # -- invariants --------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise `RuntimeError` when an invariant is broken: blocks, slots, queues. Cheap enough for every test step."""
        self.kv.check_integrity(self.running)
        waiting = self.waiting.all()
        if len(waiting) != len(self.waiting):
            raise RuntimeError("the waiting count is wrong")
        if {id(s) for s in waiting} & {id(s) for s in self.running}:
            raise RuntimeError("a sequence waits and runs")
        if any(s.block_table or s.slot != -1 for s in waiting):
            raise RuntimeError("a waiting sequence holds blocks or a slot")
        slots = [s.slot for s in self.running] + self._free_slots
        if sorted(slots) != list(range(self._config.max_num_seqs)):
            raise RuntimeError("slots are lost or held twice")
        living: dict[str, int] = {}
        for sequence in [*waiting, *self.running]:
            living[sequence.share_key] = living.get(sequence.share_key, 0) + 1
        if living != self._living:
            raise RuntimeError("living sequences per share are miscounted")
