"""Keys, tokens and passwords. Those that a service gives a form of its own are certain; a value behind `password:` only
looks like one."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.guardrails.detector import LONGEST, Form, anything
from gateway.guardrails.spans import Span

NAME = "secrets"
MIN_KEY_BODY = 64
"""Base64 signs of the smallest private key worth the name (Ed25519 in PKCS#8); an example with dots has none."""
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"[A-Za-z0-9+/=]")


def pem_start(text: str, at: int) -> int | None:
    """Where a private-key block begins that may still go on after the end of `text`, or None."""
    begin = text.rfind("-----BEGIN ", at)
    if begin < 0 or len(text) - begin > LONGEST:
        return None
    header = _BEGIN.match(text, begin)
    if header is None:
        return begin if len(text) - begin < 64 and "-----" not in text[begin + 11 :] else None
    return None if _END.search(text, header.end()) else begin


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A PEM or OpenPGP block, whole or cut off."""

    category: str = "private_key"
    detector: str = NAME

    def find(self, text: str, lowered: str) -> Iterator[Span]:  # noqa: ARG002
        header = _BEGIN.search(text)
        while header is not None:
            end = _END.search(text, header.end(), header.end() + LONGEST)
            stop = end.end() if end is not None else min(len(text), header.end() + LONGEST)
            if len(_BODY.findall(text, header.end(), end.start() if end is not None else stop)) >= MIN_KEY_BODY:
                yield Span(header.start(), stop, self.category, self.detector)
            header = _BEGIN.search(text, stop)


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


def _key(
    category: str,
    pattern: str,
    *hints: str,
    check: Callable[[str], bool] = anything,
    certain: bool = True,
    group: int = 0,
) -> Form:
    return Form(category, NAME, re.compile(pattern), check, hints, group, certain)


EDGE = r"(?<![A-Za-z0-9_\-])"
SECRETS = (
    PrivateKey(),
    _key(
        "aws_access_key",
        r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])",
        "akia",
        "asia",
        "abia",
        "acca",
    ),
    _key(
        "aws_secret_key",
        r"(?i)\baws_?secret_?(?:access_?)?key[\"']?\s{0,3}[:=]\s{0,3}[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        "aws",
        group=1,
    ),
    _key(
        "github_token", EDGE + r"gh[pousr]_[A-Za-z0-9]{36,251}(?![A-Za-z0-9_])", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"
    ),
    _key("github_token", EDGE + r"github_pat_[A-Za-z0-9_]{40,244}(?![A-Za-z0-9_])", "github_pat_"),
    _key("gitlab_token", EDGE + r"glpat-[A-Za-z0-9_\-]{20,64}(?![A-Za-z0-9_\-])", "glpat-"),
    _key("slack_token", EDGE + r"xox[abeoprs]-[0-9][A-Za-z0-9\-]{10,200}(?![A-Za-z0-9\-])", "xox"),
    _key(
        "slack_webhook",
        r"https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9]{8,14}/[A-Za-z0-9]{8,14}/[A-Za-z0-9]{16,48}",
        "hooks.slack.com",
    ),
    _key("google_api_key", EDGE + r"AIza[A-Za-z0-9_\-]{35}(?![A-Za-z0-9_\-])", "aiza"),
    _key("google_oauth_secret", EDGE + r"GOCSPX-[A-Za-z0-9_\-]{28}(?![A-Za-z0-9_\-])", "gocspx-"),
    _key("esclusa_key", EDGE + r"sk-esclusa-[0-9a-z]{16}-[0-9A-Za-z]{46}(?![0-9A-Za-z])", "sk-esclusa-"),
    _key("anthropic_key", EDGE + r"sk-ant-[a-z0-9]{2,10}-[A-Za-z0-9_\-]{20,200}(?![A-Za-z0-9_\-])", "sk-ant-"),
    _key("openai_key", EDGE + r"sk-(?!ant-|esclusa-)[A-Za-z0-9_\-]{32,200}(?![A-Za-z0-9_\-])", "sk-", check=_mixed),
    _key("huggingface_token", EDGE + r"hf_[A-Za-z0-9]{34,40}(?![A-Za-z0-9])", "hf_"),
    _key("stripe_key", EDGE + r"[sr]k_live_[A-Za-z0-9]{16,250}(?![A-Za-z0-9])", "k_live_"),
    _key("npm_token", EDGE + r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])", "npm_"),
    _key("pypi_token", EDGE + r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_\-]{50,1000}", "pypi-ageichlwas5vcmc"),
    _key("sendgrid_key", EDGE + r"SG\.[A-Za-z0-9_\-]{22}\.[A-Za-z0-9_\-]{43}(?![A-Za-z0-9_\-])", "sg."),
    _key("telegram_token", r"(?<![\w.\-])[0-9]{8,10}:AA[A-Za-z0-9_\-]{33}(?![A-Za-z0-9_\-])", ":aa"),
    _key("azure_storage_key", r"AccountKey=([A-Za-z0-9+/]{86}==)", "accountkey=", group=1),
    _key(
        "jwt",
        EDGE + r"eyJ[A-Za-z0-9_\-]{8,2000}\.[A-Za-z0-9_\-]{4,4000}\.[A-Za-z0-9_\-]{16,1400}",
        "eyj",
        check=_jwt,
    ),
    _key(
        "url_password",
        r"(?<![a-z])[a-z][a-z0-9+]{2,15}://[^\s:/@]{1,64}:([^\s@/]{3,128})@",
        "://",
        check=_password,
        certain=False,
        group=1,
    ),
    _key(
        "bearer_token",
        r"(?i)\bbearer ([A-Za-z0-9._~+/\-]{20,2000}=?=?)(?![A-Za-z0-9._~+/\-])",
        "bearer ",
        check=_mixed,
        certain=False,
        group=1,
    ),
    _key(
        "password",
        r"(?i)(?:passw(?:or)?d|passphrase|pwd|contrase[ñn]a|clave|senha|secret|api[_\- ]?key|access[_\-]?token)"
        r"[\"'`]{0,2} ?(?:[:=]| is | es ) ?[\"'`]{0,2}([^\s\"'`<>,;]{6,128})",
        "passw",
        "passphrase",
        "pwd",
        "contrase",
        "clave",
        "senha",
        "secret",
        "api",
        "token",
        check=_password,
        certain=False,
        group=1,
    ),
)
