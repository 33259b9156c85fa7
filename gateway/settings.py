"""The one settings tree. Built once by `load_settings` and passed down; nothing else reads the environment.

Sources, first wins: command-line overrides, `ESCLUSA_*` environment (nested with `__`), the YAML file named by
`--config` or `ESCLUSA_CONFIG`, defaults. `DATABASE_URL` and `REDIS_URL` are accepted because operators know them.
Unknown keys are refused with the nearest valid name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, model_validator

from gateway.config_source import Section, load
from gateway.http_settings import HttpSettings


class StoreSettings(Section):
    database_url: SecretStr | None = Field(None, description="postgresql+asyncpg://...; unset: a private Postgres")
    redis_url: SecretStr | None = Field(None, description="redis://...; unset: a private Valkey")
    redis_ca_file: Path | None = Field(None, description="PEM roots for rediss://; unset: the system's authorities")
    redis_cert_file: Path | None = Field(None, description="our own certificate, for a Valkey that asks for one")
    redis_key_file: Path | None = Field(None, description="its key, where it is not in the same file")
    database_pool: int = 10
    redis_timeout_ms: int = 50
    """Upper bound of what a slow store may add to a request."""


class ProviderSettings(Section):
    """One identity provider, chosen by the exact `iss` of a token."""

    name: str
    type: Literal["keycloak", "entra", "okta", "google", "oidc", "rfc9068", "shared_secret"] = "oidc"
    issuer: str
    tenant_ids: tuple[str, ...] = ()
    """Entra: directory GUIDs (each replaces `{tid}` in the issuer). Google: Workspace domains (`hd`)."""
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    default_key_algorithm: str | None = None
    jwks_url: str | None = None
    jwks_file: Path | None = None
    """A local key set instead of an URL: the dev issuer, or an air-gapped installation."""
    jwks_hosts: tuple[str, ...] = ()
    """Hosts besides the issuer's own to which its discovery document may point for keys."""
    discovery: bool = True
    shared_secret: SecretStr | None = None
    tenant: str = "default"
    tenant_claim: str | None = None
    roles_claim: str | None = "roles"
    groups_claim: str | None = None
    scopes_claim: str | None = "scope"
    subject_claim: str | None = None
    """None: the stable id of the type. `email` counts only when `email_verified` is true."""
    person_claim: str | None = None
    """A claim that names the same human at every provider, such as `employee_id`: it keeps one person who signs in at
    two of them from being the second person of a change. `email` counts only when `email_verified` is true."""
    department_claim: str | None = None
    clearance_claim: str | None = None
    role_map: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Claim value -> roles. Empty: the claim's values are the roles."""
    allowed_clients: tuple[str, ...] = ()
    require_client: bool = False
    """Refuse a token without a client id even when it names one audience only."""
    allow_services: bool = True
    """Accept app-only tokens (client credentials) as principals of kind `service`."""
    accept_groups_overage: bool = False
    """Accept a token whose groups did not fit in; only sound where neither roles nor rules use groups."""
    allowed_typ: tuple[str, ...] = ("absent", "jwt", "at+jwt", "application/at+jwt")
    single_key_ok: bool = False
    allow_unbound: bool = False
    allow_http: bool = False
    """Plain http key sets, for the loopback dev issuer and tests only."""
    leeway_s: int = Field(30, ge=0, le=120)
    max_lifetime_s: int = Field(86_400, gt=0, le=31_622_400)


class IdentitySettings(Section):
    providers: tuple[ProviderSettings, ...] = ()
    max_token_bytes: int = 16_384
    token_cache_entries: int = 10_000
    token_cache_ttl_s: float = 60.0
    jwks_refresh_s: float = 600.0
    jwks_cooldown_s: float = 30.0
    jwks_timeout_s: float = 5.0
    jwks_max_bytes: int = 262_144
    jwks_max_stale_s: float = 86_400.0
    jwks_proxy: str | None = None
    """Forward proxy for key sets; proxies of the environment are never used."""
    jwks_ca_file: Path | None = None
    """PEM roots instead of the usual ones, for providers behind a private CA."""
    api_key_pepper: SecretStr | None = None
    """Keyed hashing of API keys; at least 32 characters. Unset: API keys are off."""
    api_key_cache_ttl_s: float = Field(4.0, ge=0, le=4.5)
    """A notification drops what is remembered at once; should it be lost, a change still holds within 5 s."""
    revocation_poll_s: float = Field(4.0, gt=0, le=4.5)
    owner_revocation_stops_keys: bool = Field(
        True,
        description="`issued_before` of a person also stops the keys made until then of the service accounts they own",
    )
    revocation_max_stale_s: float = 86_400.0
    """How long the last list of revocations may serve while the database is away, restarts included; then 503."""
    api_key_max_stale_s: float = Field(
        86_400.0, ge=0, description="how long an API key serves as last known while the database is away; then 503"
    )
    api_key_lookup_timeout_s: float = Field(
        1.0, gt=0, le=30, description="a look-up that takes longer counts as failed; after one nobody waits"
    )


class AccessSettings(Section):
    policy_file: Path | None = Field(None, description="seeds an empty database; default policies/default.yaml")
    poll_s: float = 4.0
    max_stale_s: float = 86_400.0
    snapshot_dir: Path | None = None
    four_eyes: bool = False


class LimitSettings(Section):
    lease_s: float = Field(60.0, gt=0, description="a claim whose gateway died is free after this long")
    replicas: int = Field(1, ge=1, description="the local share of a limit is limit / replicas while the store is down")
    key_prefix: str = "esclusa"
    sweep_s: float = 15.0
    max_lease_s: float = Field(3600.0, description="a request that never ends loses its claim after this long")
    min_grant_tokens: int = Field(64, ge=1, description="less room than this in a rate window: wait instead of a stub")


class GuardrailSettings(Section):
    timeout_ms: int = Field(
        1000,
        gt=0,
        description="processor time for one text; the wait for it may be ten times as long; what happens then is the "
        "policy's `guardrails`",
    )
    workers: int = Field(
        2,
        ge=1,
        description="threads that inspect, and as many for long texts; a text that waits for one spends its own time",
    )


class AuditSettings(Section):
    mode: Literal["strict", "standard", "fast"] = "standard"
    spool_dir: Path | None = None
    spool_quota_bytes: int = 10 * 1024**3
    group_commit_ms: float = 2.0
    group_commit_records: int = 256
    retention_days: int = Field(
        400, ge=183, description="months of the trail that are older are removed, after a record that tells of them"
    )
    hmac_key: SecretStr | None = None
    content_keys: SecretStr | None = None
    """`<id>:<base64 of 32 bytes>`, several separated by white space: the first encrypts prompts and answers where
    policy says `contentLogging: encrypted`, all decrypt. With neither this nor `content_key_file` such requests
    are refused."""
    content_key_file: Path | None = None
    """The same from a file that only the gateway may read."""
    content_retention_days: int = Field(30, ge=1, le=3650)
    seal_s: float = Field(
        60.0, ge=1, le=86_400, description="how often a record and a log line name the head of the hash chain"
    )
    unknown_per_minute: int = Field(600, ge=1, description="401s of one source recorded singly; the rest are counted")


class BatchSettings(Section):
    """`/v1/files` and `/v1/batches`. Who may use them is the policy's action `batches.use`."""

    concurrency: int = Field(2, ge=0, le=256, description="lines of batches that this node runs at once; 0: none")
    max_file_bytes: int = Field(100 * 1024 * 1024, gt=0, description="of one uploaded file")
    max_lines: int = Field(50_000, gt=0, le=1_000_000, description="requests of one batch, and lines of one file")
    max_bytes_per_owner: int = Field(1024**3, gt=0, description="of all files of one caller, results included")
    max_files_per_owner: int = Field(10_000, ge=1, description="files of one caller, and batches of the retention time")
    max_open_per_owner: int = Field(5, ge=1, description="batches of one caller that have not ended")
    retention_days: int = Field(30, ge=1, le=3650, description="how long files and results are kept at most")
    lease_s: float = Field(30.0, ge=0.5, description="a line whose node has died is run again after this long")
    poll_s: float = Field(2.0, ge=0.1, le=60, description="how often a node without work looks for some")


class UpstreamSettings(Section):
    base_url: str
    api_key: SecretStr | None = None
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 120.0
    max_connections: int = 256
    retries: int = 1


def _micro(units: Decimal | None, micro: int) -> int:
    return micro if units is None else int(units * 1_000_000)


class ModelSettings(Section):
    """One catalog entry. `path` for the local engine, `upstream` for an OpenAI-compatible server."""

    id: str
    tier: Literal["small", "large"] | None = None
    path: str | None = None
    sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-fA-F]{64}$",
        description="the content hash that the files at `path` must have; another one is refused while loading",
    )
    upstream: str | None = None
    upstream_model: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    context_window: int | None = None
    max_output_tokens: int | None = None
    price_in: Decimal | None = Field(
        None, ge=0, decimal_places=6, description="units of `currency` per million prompt tokens, such as 0.60"
    )
    price_out: Decimal | None = Field(
        None, ge=0, decimal_places=6, description="units of `currency` per million output tokens"
    )
    price_in_micro: int = Field(0, ge=0, description="the same in millionths; write `price_in` instead")
    price_out_micro: int = Field(0, ge=0, description="the same in millionths; write `price_out` instead")
    currency: str = Field("EUR", pattern=r"^[A-Z]{3}$", description="ISO 4217; budgets count in one currency")
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    quantization: str | None = None
    kernel_manifest: Path | None = Field(None, description="what `esclusa kernels build` wrote for it, for a GPU")
    default_max_tokens: int | None = Field(
        None, ge=1, description="length of an answer whose caller names none; None: the room left in the window"
    )
    temperature: float | None = Field(
        None, ge=0, le=2, description="this and the next four: used when the caller names none; else as the model says"
    )
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    stop_on_repetition: bool = Field(False, description="end an answer that does nothing but repeat itself")
    actions: tuple[str, ...] = ("chat", "completions")
    languages: tuple[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")], ...] = Field(
        (), description="ISO 639-1 codes of the languages that it speaks; `auto` asks it nothing in another one"
    )
    created: int | None = Field(
        None, ge=0, description="Unix time for GET /v1/models; unset: of its files, or of the start of the gateway"
    )
    embedding_dimensions: tuple[int, ...] = Field(
        (), description="sizes below its own to which the model's embeddings may be cut (Matryoshka models)"
    )
    tools: bool = Field(
        True, description="whether it calls tools; false refuses them, and keeps `auto` from sending them"
    )
    tool_call_parser: str | None = Field(
        None, description="how a local model writes calls of tools, by vLLM's names; None: seen in its chat template"
    )
    reasoning_parser: str | None = Field(
        None, description="`qwen3` or `deepseek_r1` for a block of <think>, `none`; None: seen in its chat template"
    )

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        for name in ("price_in", "price_out"):
            if getattr(self, name) is not None and getattr(self, f"{name}_micro"):
                raise ValueError(f"`{name}` and `{name}_micro` are both written; keep `{name}`")
        return self

    @property
    def prices_micro(self) -> tuple[int, int]:
        """(prompt, output), micro-units per million tokens; exact."""
        return _micro(self.price_in, self.price_in_micro), _micro(self.price_out, self.price_out_micro)


class EngineSettings(Section):
    """Flags carry vLLM's names."""

    device: str = "auto"
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "bfloat16", "float16", "float32"] = Field(
        "auto", description="of keys and values; fp8 halves the cache, on GPUs"
    )
    kv_cache_bytes: int | None = Field(None, description="KV cache per model on CPU; None: a share of free memory")
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority", "fair"] = "fair"
    max_seqs_per_share: int | None = Field(None, ge=1, description="Most running sequences of one subject")
    max_blocks_per_share: int | None = Field(None, ge=1, description="Most KV blocks that one subject's requests hold")
    starvation_bound_s: float = Field(10.0, gt=0, description="Who waited that long goes first, whatever the policy")
    max_waiting: int = Field(4096, ge=1, description="Waiting sequences beyond which requests are refused with 503")
    pooling: Literal["mean", "last"] = Field("mean", description="How a decoder's states become an embedding")
    tensor_parallel_size: int = 1
    threads: int | None = None
    deterministic: bool = False
    watchdog_s: float = Field(
        120.0, gt=0, description="a step longer than this is stuck: waiters are told, new requests refused with 503"
    )
    generation_config: Literal["auto", "vllm"] = Field(
        "auto", description="auto: sampling that is left open is what the model's files recommend; vllm: neutral"
    )


class RoutingSettings(Section):
    virtual_model: str = "auto"
    threshold: float = 0.5
    small: str | None = None
    large: str | None = None


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console", "auto"] = "auto"


class LocalSettings(Section):
    enabled: bool = False
    data_dir: Path | None = None


class Settings(Section):
    http: HttpSettings = HttpSettings()
    store: StoreSettings = StoreSettings()
    identity: IdentitySettings = IdentitySettings()
    access: AccessSettings = AccessSettings()
    limits: LimitSettings = LimitSettings()
    guardrails: GuardrailSettings = GuardrailSettings()
    audit: AuditSettings = AuditSettings()
    batches: BatchSettings = BatchSettings()
    models: tuple[ModelSettings, ...] = ()
    upstreams: dict[str, UpstreamSettings] = Field(default_factory=dict)
    engine: EngineSettings = EngineSettings()
    routing: RoutingSettings = RoutingSettings()
    log: LogSettings = LogSettings()
    local: LocalSettings = LocalSettings()


def load_settings(
    config_file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read all sources once. Raises `ConfigError`: `file:line:column: what was found, what was expected`.

    `overrides` is a nested mapping from the command line, `{"http": {"port": 9000}}`.
    """
    variables = os.environ if environment is None else environment
    if config_file is None and variables.get("ESCLUSA_CONFIG"):
        config_file = Path(variables["ESCLUSA_CONFIG"])
    return load(Settings, config_file, variables, overrides)
