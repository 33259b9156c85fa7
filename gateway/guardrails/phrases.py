"""Attempts to steer a model past its instructions, in Spanish and English (with a little Portuguese). Pure.

Rules over plain words (`folding.plain_words`), not a classifier: they catch what is copied from lists and miss what is
new. Therefore a phrase is a hint, never a proof: policy decides whether it is flagged or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.guardrails.folding import plain_words, undisguised

NAME = "phrases"
OVERLAP = 256
"""More than the longest phrase: slices of a text overlap by it."""

_UPTO3 = r"(?:[\w]{1,20} ){0,3}"
_UPTO5 = r"(?:[\w]{1,20} ){0,5}"
_RULES_EN = r"(?:instruction|rule|prompt|directive|guideline|order|command|message|training|programming|polic(?:y|ies)|restriction|constraint)s?"
_RULES_ES = (
    r"(?:instruccion(?:es)?|reglas?|indicacion(?:es)?|ordenes|directrices|directivas|normas|restriccion(?:es)?|"
    r"politicas|mensajes|instrucoes|regras|filtros|limitacion(?:es)?)"
)
_IGNORE_ES = (
    r"(?:ignora[rd]?|ignore[sn]?|ignorad|ignorem|olvida(?:r|te|d)?|olvide(?:n|se)?|omite|omitir|descarta[rd]?|"
    r"desobedece|desestima|pasa por alto|haz caso omiso de|hagan? caso omiso de|no hagas caso (?:a|de)|no sigas|saltate|esqueca)"
)


@dataclass(frozen=True, slots=True)
class Phrase:
    category: str
    pattern: re.Pattern[str]
    hints: tuple[str, ...]


def _phrase(category: str, pattern: str, *hints: str) -> Phrase:
    return Phrase(category, re.compile(rf"\b{pattern}"), hints)


INJECTION, JAILBREAK, LEAK = "prompt_injection", "jailbreak", "prompt_extraction"
PHRASES = (
    _phrase(
        INJECTION,
        r"(?:ignor(?:e|ing)|disregard(?:ing)?|forget|override|bypass|discard|do not follow|don t follow|stop following) "
        rf"{_UPTO3}(?:previous|prior|above|earlier|preceding|original|initial|system|developer|foregoing|your|all|any) {_UPTO3}{_RULES_EN}\b",
        "ignor", "disregard", "forget", "override", "bypass", "discard", "follow",
    ),
    _phrase(
        INJECTION,
        r"(?:ignore|disregard|forget) (?:everything|all|anything)(?: that)? (?:above|before|you (?:were|have been|know|was)|said|i said|we (?:said|discussed))",
        "ignore", "disregard", "forget",
    ),
    _phrase(
        INJECTION,
        rf"{_IGNORE_ES} {_UPTO3}{_RULES_ES} {_UPTO3}(?:anterior(?:es)?|previas?|previos|iniciales|originales|precedentes|de arriba|del sistema|de sistema|"
        r"recibid[oa]s|dadas|que (?:te|le|os) (?:dieron|han dado|di|dio)|anteriormente|hasta ahora|de seguridad)\b",
        "ignor", "olvid", "omit", "descart", "desobedece", "desestima", "por alto", "caso", "sigas", "saltate", "esqueca",
    ),
    _phrase(
        INJECTION,
        rf"{_IGNORE_ES} (?:(?:a |de )?(?:todas?|tod[oa]s|tus|sus|las|as|suas) ){{1,3}}(?:(?:anteriores|previas) )?(?:instrucciones|reglas|directrices|restricciones|ordenes|normas|filtros|limitaciones|instrucoes|regras)\b",
        "ignor", "olvid", "omit", "descart", "desobedece", "desestima", "por alto", "caso", "sigas", "saltate", "esqueca",
    ),
    _phrase(
        INJECTION,
        r"(?:ignora|olvida|olvidate de|ignore|olvide) todo (?:lo (?:anterior|que (?:te|le|se|hemos|has|he))|cuanto)",
        "todo",
    ),
    _phrase(
        INJECTION,
        r"(?:new|updated|real|true) (?:system )?(?:instructions|prompt|directive) (?:follow|are|is|begin|override|supersede)",
        "instructions", "prompt", "directive",
    ),
    _phrase(
        INJECTION,
        r"(?:a partir de ahora|desde ahora|de ahora en adelante) (?:\w{1,15} ){0,3}(?:eres|seras|actua|actuaras|responde|obedece|obedeceras|respondes) (?:\w{1,15} ){0,6}(?:sin (?:ninguna )?(?:restriccion|filtro|limite|censura|regla)|solo a mi|cualquier cosa)",
        "ahora",
    ),
    _phrase(
        INJECTION,
        r"from now on (?:\w{1,15} ){0,4}(?:you are|you will|act|respond|answer|obey) (?:\w{1,15} ){0,8}(?:without (?:any )?(?:restriction|filter|limit|rule|censor)|unrestricted|unfiltered|no longer bound)",
        "from now on",
    ),
    _phrase(INJECTION, r"(?:im_start|im_end|endoftext|start_header_id|end_header_id|eot_id)\b", "im_", "endoftext", "header_id", "eot_id"),
    _phrase(INJECTION, r"(?:end|begin|start|fin|inicio) (?:of|del?) (?:the )?(?:system|sistema|user|usuario) (?:prompt|instructions|message|mensaje|instrucciones)\b", "system", "sistema", "user", "usuario"),
    _phrase(INJECTION, r"inst sys\b|sys sys\b|inst ignore\b", "sys", "inst "),
    _phrase(
        LEAK,
        r"(?:reveal|show|print|repeat|display|output|tell me|give me|leak|reproduce|write out|what (?:is|are|was|were)) "
        r"(?:\w{1,15} ){0,3}(?:system prompt|system message|(?:initial|original|hidden|secret|system|developer|internal) (?:instructions?|prompts?|rules|message))\b",
        "prompt", "instruction", "message", "rules",
    ),
    _phrase(LEAK, r"repeat (?:\w{1,15} ){0,3}(?:words|text|everything|lines) (?:above|before)\b", "repeat"),
    _phrase(
        LEAK,
        r"(?:revela(?:me)?|muestra(?:me)?|imprime|repite(?:me)?|dime|ensename|escribe|copia|dame|cuales son|cual es|mostra(?:me)?|mostre) "
        r"(?:\w{1,15} ){0,3}(?:prompt (?:de|del|do) sistema|system prompt|prompt (?:inicial|oculto|interno|original)|mensaje (?:de|del) sistema|"
        r"instrucciones (?:iniciales|ocultas|internas|originales|secretas|de sistema|del sistema|de desarrollador))\b",
        "prompt", "mensaje", "instrucciones",
    ),
    _phrase(JAILBREAK, r"do anything now\b", "anything now"),
    _phrase(JAILBREAK, r"(?:you are|act as|eres|actua como|enable|activa(?:te)?(?: el)?|modo|mode|as|pretend to be) (?:now |ahora )?dan(?: mode| modo)?\b(?! (?:brown|el|la|los|un|una|de)\b)", " dan"),
    _phrase(JAILBREAK, r"(?:developer|god|jailbreak|sudo|debug|unrestricted|dan) mode (?:is )?(?:now )?(?:enabled|activated|on|engaged|output)\b", " mode"),
    _phrase(JAILBREAK, r"(?:enable|activate|enter|switch to|engage) (?:\w{1,15} ){0,2}(?:developer|god|jailbreak|unrestricted|dan) mode\b", " mode"),
    _phrase(JAILBREAK, r"(?:activa|entra en|habilita|inicia|pasa a|pon|actives?|ativa|ative) (?:\w{1,15} ){0,2}modo (?:desarrollador|dios|sin (?:censura|restricciones|filtros|limites)|jailbreak|dan|libre|desenvolvedor)\b", "modo"),
    _phrase(
        JAILBREAK,
        r"(?:act|behave|respond|answer|pretend|roleplay|play|you are|be) (?:\w{1,15} ){0,6}(?:unrestricted|unfiltered|uncensored|amoral|jailbroken)\b",
        "unrestricted", "unfiltered", "uncensored", "amoral", "jailbroken",
    ),
    _phrase(
        JAILBREAK,
        r"(?:ai|assistant|model|chatbot|bot|llm|character|persona) (?:\w{1,15} ){0,3}(?:without|with no|free (?:of|from)|has no|have no|not bound by) (?:\w{1,15} ){0,3}(?:restrictions?|filters?|ethic(?:s|al)|guidelines|limitations?|limits|censorship|safety|morals?)\b",
        "without", "with no", "free ", "no ", "not bound",
    ),
    _phrase(
        JAILBREAK,
        r"(?:ia|inteligencia artificial|asistente|modelo|chatbot|bot|personaje) (?:\w{1,15} ){0,4}(?:sin|libre de|que no tiene|no tiene|carece de|sem) (?:\w{1,15} ){0,3}(?:restricci(?:on|ones)|filtros?|censura|etica|limites|limitaciones|moral|reglas|restricoes)\b",
        "sin ", "libre de", "no tiene", "carece", "sem ",
    ),
    _phrase(
        JAILBREAK,
        r"(?:responde|actua|contesta|habla|compórtate|comportate|escribe|finge|simula) (?:\w{1,15} ){0,5}sin (?:\w{1,15} ){0,2}(?:restricciones|filtros?|censura|limites eticos|etica|advertencias eticas)\b",
        "sin ",
    ),
    _phrase(JAILBREAK, r"(?:bypass|evade|circumvent|disable|turn off|remove|get around) (?:\w{1,15} ){0,3}(?:safety|content|ethical|moderation) (?:filters?|guidelines|guardrails|policies|policy|restrictions|measures|protocols)\b", "safety", "content", "ethical", "moderation"),
    _phrase(JAILBREAK, r"(?:evade|elude|desactiva|burla|salta(?:te)?|quita|elimina|esquiva|evita) (?:\w{1,15} ){0,3}(?:filtros?|restricciones|protecciones|barreras|medidas|politicas|salvaguardas) (?:de|del) (?:seguridad|contenido|moderacion|etica|modelo|uso)\b", "filtro", "restriccion", "proteccion", "barrera", "medidas", "politicas", "salvaguardas"),
)  # fmt: skip


def count_phrases(text: str, slice_chars: int, between: Callable[[], None]) -> Iterator[tuple[str, int]]:
    """How often each category occurs. Works slice by slice and calls `between` before each one (it may raise)."""
    parts = []
    for at in range(0, len(text), slice_chars):
        between()
        parts.append(plain_words(text[at : at + slice_chars]))
    words = "".join(parts)
    counts: dict[str, int] = {}
    for reading in (words, undisguised(words)):
        if reading is None or (reading is not words and counts):
            continue
        for phrase in PHRASES:
            if any(hint in reading for hint in phrase.hints):
                found = _count(phrase.pattern, reading, slice_chars, between)
                if found:
                    counts[phrase.category] = counts.get(phrase.category, 0) + found
    yield from counts.items()


def _count(pattern: re.Pattern[str], words: str, slice_chars: int, between: Callable[[], None]) -> int:
    count, free = 0, 0
    for at in range(0, len(words), slice_chars):
        between()
        stop = min(at + slice_chars, len(words))
        for match in pattern.finditer(words, max(at, free), min(stop + OVERLAP, len(words))):
            if match.start() >= stop:
                break
            count, free = count + 1, match.end()
    return count
