"""Keys, tokens and passwords. Those that a service gives a form of its own are certain; a value behind `password:` only
looks like one."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.guardrails.detectors.form import BREAKS, IDEOGRAPHS, LONGEST, Finder, Form, anything
from gateway.guardrails.spans import Span

NAME = "secrets"
MIN_KEY_BODY = 64
"""Base64 signs of the smallest private key worth the name (Ed25519 in PKCS#8); an example with dots has none."""
_MARK = "-----BEGIN "
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"[A-Za-z0-9+/=]")


def pem_start(text: str, at: int) -> int | None:
    """The start of the first private-key block that may continue after the end of `text`, or None.

    The first, as a header inside a block that has not ended is part of that block.
    """
    begin = text.find(_MARK, max(at, len(text) - LONGEST))
    while begin >= 0:
        header = _BEGIN.match(text, begin)
        if header is None:
            after = begin + len(_MARK)
            if len(text) - begin < 64 and "-----" not in text[after:]:
                return begin
        else:
            footer = _END.search(text, header.end())
            if footer is None:
                return begin
            after = footer.end()
        begin = text.find(_MARK, after)
    return None


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A PEM or OpenPGP block, whole or cut off."""

    category: str = "private_key"
    detector: str = NAME

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:  # noqa: ARG002
        header = _BEGIN.search(text, start, end)
        while header is not None:
            footer = _END.search(text, header.end(), header.end() + LONGEST)
            stop = min(len(text), header.end() + LONGEST) if footer is None else footer.end()
            body = _BODY.findall(text, header.end(), stop if footer is None else footer.start())
            if len(body) >= MIN_KEY_BODY:
                yield Span(header.start(), stop, self.category, self.detector)
            header = _BEGIN.search(text, stop, end)


def _jwt(text: str) -> bool:
    """The header is JSON and names an algorithm (RFC 7515)."""
    head = text.split(".", 1)[0]
    try:
        return b'"alg"' in base64.urlsafe_b64decode(head + "=" * (-len(head) % 4))
    except (binascii.Error, ValueError):
        return False


def _mixed(text: str) -> bool:
    """Random letters and digits, not a hyphenated name."""
    letters = [sign for sign in text if sign.isalpha()]
    return any(sign.isdigit() for sign in text) and any(map(str.isupper, letters)) and any(map(str.islower, letters))


_PLACEHOLDERS = ("xxx", "***", "...", "changeme", "your", "example", "ejemplo", "environ", "getenv", "os.", "${", "{{")


def _password(text: str) -> bool:
    """A value somebody could use: letters and digits or signs, and no placeholder or call."""
    lowered = text.lower()
    if any(word in lowered for word in _PLACEHOLDERS) or "(" in text or text[0] in "$%<[":
        return False
    return any(map(str.isalpha, text)) and not text.rstrip(".,;:").isalpha()


def _chosen(text: str) -> bool:
    """A value that is a password by itself: small and capital letters, and digits or signs at its end."""
    return _mixed(text) and _password(text) and "/" not in text and "=" not in text and not text[-1].isalpha()


def _key(
    category: str,
    starts: str,
    pattern: str,
    check: Callable[[str], bool] = anything,
    *,
    certain: bool = True,
    group: int = 0,
) -> Form:
    return Form(category, NAME, re.compile(pattern), check, tuple(starts.split("|")), group, certain)


@dataclass(frozen=True, slots=True)
class Broken:
    """A key over a line break or a blank, as copied from a terminal or a page: what follows must look like its rest."""

    key: Form

    @property
    def category(self) -> str:
        return self.key.category

    @property
    def detector(self) -> str:
        return self.key.detector

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:
        for literal in self.key.starts:
            at = lowered.find(literal, start, end)
            while at >= 0:
                halves = _HALVES.match(text, at)
                if halves is not None and _mixed_rest(halves[3]):
                    joined = halves[1] + halves[3]
                    # The sign before the key decides whether it begins a word.
                    match = self.key.pattern.match(text[max(0, at - 2) : at] + joined, min(at, 2))
                    length = 0 if match is None else match.end() - min(at, 2)
                    if length > len(halves[1]) and self.key.check(joined[:length]):
                        yield Span(at, at + length + len(halves[2]), self.category, self.detector, self.key.certain)
                at = lowered.find(literal, at + 1, end)


def _mixed_rest(text: str) -> bool:
    return len(text) >= 6 and any(map(str.isdigit, text)) and any(map(str.isalpha, text))


_HALVES = re.compile(r"([A-Za-z0-9_.\-]{4,256}+)([ \t]{0,2}\r?[ \t\n][ \t]{0,2})([A-Za-z0-9_.\-]{6,256})")
_OPEN = re.compile(
    r"(?<![A-Za-z0-9])(?:akia|asia|abia|acca|gh[pousr]_|github_pat_|glpat-|xox|aiza|gocspx-|sk-|hf_|[sr]k_live_|npm_|sg\.)"
    r"[a-z0-9_.\-]{0,256}[ \t\r\n]{0,6}[a-z0-9_.\-]{0,256}$",
    re.IGNORECASE,
)


def key_start(text: str) -> int | None:
    """The start of a key that may continue after the end of the text, or after the blank behind it."""
    found = _OPEN.search(text, max(0, len(text) - 528))
    return None if found is None else found.start()


WORD = r"A-Za-z0-9_\-"
ENDS = BREAKS.strip() + IDEOGRAPHS
EDGE, STOP = r"(?<![A-Za-z0-9])(?<![A-Za-z0-9_]-)", rf"(?![A-Za-z0-9_]|-[{WORD}])"
"""Not inside a name with hyphens; a dash of the sentence around it may touch."""
_HOOK = r"[A-Za-z0-9]{8,14}/[A-Za-z0-9]{8,14}/[A-Za-z0-9]{16,48}"
_NAMES = (
    r"(?:passw(?:or)?d|passphrase|pwd|contrase[ñn]a|clave|senha|secret|api[_\- ]?key|access[_\- ]?token)"
    r"[\"'`]{0,2} ?(?:[:=]| is | es ) ?[\"'`]{0,2}"
)
_ALONE = r"(?:passw(?:or)?d|passphrase|pwd|contrase[ñn]a|clave|senha)"
_PASSWORDS = (
    # On the line below its name, and behind the name of a user.
    (
        rf"(?i)(?<!\w){_ALONE}[ \t]?[:=]?[ \t]?\r?\n([^\s{ENDS}]{{8,128}})(?=[\r\n]|\Z)",
        "passw|passphrase|pwd|contrase|clave|senha",
    ),
    (rf"(?i)(?:usuario|user|login)[^\n]{{1,40}}?(?<!\w){_ALONE} ([^\s{ENDS}]{{8,128}})", "usuario|user|login"),
)
_KEYS = (
    _key("aws_access_key", "akia|asia|abia|acca", rf"{EDGE}(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{{16}}{STOP}"),
    _key(
        "aws_secret_key",
        "aws_secret|awssecret",
        r"(?i)aws_?secret_?(?:access_?)?key[\"']?\s{0,3}[:=]\s{0,3}[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        group=1,
    ),
    _key("github_token", "ghp_|gho_|ghu_|ghs_|ghr_", rf"{EDGE}gh[pousr]_[A-Za-z0-9]{{36,251}}{STOP}"),
    _key("github_token", "github_pat_", rf"{EDGE}github_pat_[A-Za-z0-9_]{{40,244}}{STOP}"),
    _key("gitlab_token", "glpat-", rf"{EDGE}glpat-[{WORD}]{{20,64}}{STOP}"),
    _key("slack_token", "xox", rf"{EDGE}xox[abeoprs]-[0-9][A-Za-z0-9\-]{{10,200}}{STOP}"),
    _key("slack_webhook", "https://hooks.slack.com/", rf"https://hooks\.slack\.com/(?:services|workflows)/{_HOOK}"),
    _key("google_api_key", "aiza", rf"{EDGE}AIza[{WORD}]{{35}}{STOP}"),
    _key("google_oauth_secret", "gocspx-", rf"{EDGE}GOCSPX-[{WORD}]{{28}}{STOP}"),
    _key("esclusa_key", "sk-esclusa-", rf"{EDGE}sk-esclusa-[0-9a-z]{{16}}-[0-9A-Za-z]{{46}}{STOP}"),
    _key("anthropic_key", "sk-ant-", rf"{EDGE}sk-ant-[a-z0-9]{{2,10}}-[{WORD}]{{20,200}}{STOP}"),
    _key("openai_key", "sk-", rf"{EDGE}sk-(?!ant-|esclusa-)[{WORD}]{{32,200}}{STOP}", _mixed),
    _key("huggingface_token", "hf_", rf"{EDGE}hf_[A-Za-z0-9]{{34,40}}{STOP}"),
    _key("stripe_key", "sk_live_|rk_live_", rf"{EDGE}[sr]k_live_[A-Za-z0-9]{{16,250}}{STOP}"),
    _key("npm_token", "npm_", rf"{EDGE}npm_[A-Za-z0-9]{{36}}{STOP}"),
    _key("pypi_token", "pypi-ageichlwas5vcmc", rf"{EDGE}pypi-AgEIcHlwaS5vcmc[{WORD}]{{50,1000}}"),
    _key("sendgrid_key", "sg.", rf"{EDGE}SG\.[{WORD}]{{22}}\.[{WORD}]{{43}}{STOP}"),
    _key("telegram_token", ":aa", rf"(?<=[0-9]{{8}}):(AA[{WORD}]{{33}}){STOP}", group=1),
    _key("azure_storage_key", "accountkey=", "AccountKey=([A-Za-z0-9+/]{86}==)", group=1),
)
"""Forms as their makers document them, or as their scanners do; a service that changes its form changes it here."""
SECRETS: tuple[Finder, ...] = (
    PrivateKey(),
    *_KEYS,
    *(Broken(key) for key in _KEYS if key.pattern.pattern.startswith(EDGE)),
    _key("jwt", "eyj", rf"{EDGE}eyJ[{WORD}]{{8,2000}}\.[{WORD}]{{4,4000}}\.[{WORD}]{{16,1400}}", _jwt),
    _key(
        "url_password",
        "://",
        rf"(?<=[a-z])://[^\s:/@{ENDS}]{{1,64}}:([^\s@/{ENDS}]{{3,128}})@",
        _password,
        certain=False,
        group=1,
    ),
    _key(
        "bearer_token",
        "bearer ",
        r"(?i)(?<!\w)bearer ([A-Za-z0-9._~+/\-]{20,2000}=?=?)(?![A-Za-z0-9._~+/\-])",
        _mixed,
        certain=False,
        group=1,
    ),
    _key(
        "password",
        "passw|passphrase|pwd|contrase|clave|senha|secret|api|access",
        rf"(?i){_NAMES}([^\s{ENDS}]{{6,128}})",
        _password,
        certain=False,
        group=1,
    ),
    *(_key("password", starts, pattern, _chosen, certain=False, group=1) for pattern, starts in _PASSWORDS),
)
