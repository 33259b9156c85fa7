"""A request of a coding agent as it comes over Anthropic's API: many tools, caching marks, hints, labels, betas."""

from __future__ import annotations

from typing import Any

HEADERS = {
    "user-agent": "claude-cli/2.1.100 (external, cli)",
    "x-app": "cli",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
    "accept": "application/json",
}
EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def agent_body(model: str, *, tools: int = 121, rules: str = "Be brief.") -> dict[str, Any]:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"p": {"type": "string", "description": "A command"}},
        "required": ["p"],
        "additionalProperties": False,
    }
    call = {"type": "tool_use", "id": "toolu_01", "name": "Tool1", "input": {"p": "ls"}, "caller": {"type": "direct"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_01", "content": "a.py", "is_error": False, **EPHEMERAL}
    return {
        "model": model,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>…</system-reminder>"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "EqQB"}, call]},
            {"role": "user", "content": [result]},
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=1;"},
            {"type": "text", "text": "You are an agent.", **EPHEMERAL},
            {"type": "text", "text": rules, **EPHEMERAL},
        ],
        "tools": [
            {"name": f"Tool{number}", "description": "d" * 900, "input_schema": schema, "eager_input_streaming": True}
            for number in range(tools)
        ],
        "metadata": {"user_id": '{"device_id":"' + "0" * 64 + '","account_uuid":"","session_id":"5d2c"}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive", "display": "summarized"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "temperature": 1,
        "stream": True,
    }
