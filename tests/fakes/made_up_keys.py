"""Keys of every form that the guardrails know, made up here: no file holds anything that looks like a real one."""

from __future__ import annotations

import base64
import re

A1 = "aB3dE5gH7jK9mN2pQ4rS6tU8vW1xY0zC"
JWT = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b'{"alg":"RS256","typ":"JWT"}', b'{"sub":"u-1","exp":1796064651}', b"not a signature at all, but long")
)
BODY = "\n".join((A1 * 2) for _ in range(6))
KEYS = {
    "aws_access_key": "AKIA" + "QWERTYUIOP234567",
    "aws_secret_key": (A1 + "/+Ab3De5")[:40],
    "github_token": "ghp_" + A1 + "Zz9Y",
    "github_pat": "github_pat_" + A1 + "_" + A1,
    "gitlab_token": "glpat-" + A1[:20],
    "slack_token": "xoxb-" + "123456789012-" + A1[:24],
    "slack_webhook": "https://hooks." + "slack.com/services/T0ABCDEFG/B0ABCDEFG/" + A1[:24],
    "google_api_key": "AIza" + A1 + "_-9",
    "google_oauth_secret": "GOCSPX-" + A1[:28],
    "openai_key": "sk-" + "proj-" + A1 + A1[:16],
    "anthropic_key": "sk-ant-" + "api03-" + A1 + A1,
    "esclusa_key": "sk-esclusa-" + "0a1b2c3d4e5f6g7h-" + (A1 + A1)[:46],
    "huggingface_token": "hf_" + A1 + "Ab",
    "stripe_key": "sk_" + "live_" + A1[:24],
    "npm_token": "npm_" + A1 + "Ab3D",
    "sendgrid_key": "SG." + A1[:22] + "." + (A1 + A1)[:43],
    "telegram_token": "123456789:" + "AA" + (A1 + "x")[:33],
    "azure_storage_key": "AccountKey=" + (A1 * 3)[:86] + "==",
    "jwt": JWT,
    "private_key": "-----BEGIN " + "PRIVATE KEY-----\n" + BODY + "\n-----END " + "PRIVATE KEY-----",
    "openssh_key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n" + BODY,
}


def with_keys(text: str) -> str:
    """Replace each `<<name>>` that is known; leave other double angles alone."""
    return re.sub(r"<<(\w+)>>", lambda found: KEYS.get(found[1], found[0]), text)
