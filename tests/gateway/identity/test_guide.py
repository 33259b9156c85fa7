"""docs/guides/identity.md against the code: its examples build, its table knows every public refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.identity.providers import build_providers
from gateway.settings import ProviderSettings

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guides/identity.md").read_text(encoding="utf-8")
EXAMPLES = [
    entry
    for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    for entry in yaml.safe_load(block if block.startswith("identity") else f"identity:\n  providers:\n{block}")[
        "identity"
    ]["providers"]
]
LISTENER_CODES = {"missing_token", "ambiguous_credentials"}
ADMIN_FILES = {"accounts.py", "narrowing.py", "revoking.py", "idempotency.py"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["type"])
def test_example_is_a_valid_provider(example: dict[str, object]) -> None:
    assert build_providers(ProviderSettings(**example))


def test_examples_cover_every_corporate_type() -> None:
    assert {example["type"] for example in EXAMPLES} >= {"keycloak", "entra", "okta", "google"}


def test_table_knows_every_code_a_credential_can_be_refused_with() -> None:
    sources = [p for p in (ROOT / "gateway/identity").glob("*.py") if p.name not in ADMIN_FILES]
    raised = {code for path in sources for code in re.findall(r'code="(\w+)"', path.read_text(encoding="utf-8"))} | {
        "invalid_token"
    }
    listed = set(re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|[^|]*\|\n)", GUIDE.partition("| code |")[2]))
    assert raised | LISTENER_CODES <= listed


def test_settings_named_in_the_guide_exist() -> None:
    from gateway.settings import IdentitySettings

    named = set(re.findall(r"identity\.(\w+)", GUIDE)) - {"md", "read", "write"}
    assert named <= set(IdentitySettings.model_fields)
