"""The composition root: the only place where services are built, opened in order and closed in reverse.

Knows every domain and decides nothing. Works without the engine installed: then it is a governed proxy.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version as installed_version
from uuid import UUID

from prometheus_client import CollectorRegistry
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.access.history.repository import PolicyRepository
from gateway.access.history.service import AccessService
from gateway.admin.guard import PermissionGuard
from gateway.api.anthropic.dialect import dialect_of
from gateway.api.health import Part, Readiness
from gateway.api.http.admission import InFlight
from gateway.api.http.refusals import Refusals
from gateway.api.http.startup_app import BootProgress, StartupApp
from gateway.api.responses.kept import Stores
from gateway.audit.content import ContentSealer
from gateway.audit.content_keys import ContentKeys, load_content_keys
from gateway.audit.content_reader import ContentReader
from gateway.audit.reader import AuditReader
from gateway.audit.service import AuditService
from gateway.backends.engine_files import read_model_files
from gateway.backends.openai_http import OpenAIBackend
from gateway.conversations.conversation_store import ConversationStore
from gateway.conversations.store import ResponseStore
from gateway.descriptors import ENOUGH, DescriptorPlan, measure
from gateway.errors import ConfigError
from gateway.flow.cache_salt import cache_salt
from gateway.flow.context import Clock, IdSource, SystemClock, SystemIds
from gateway.flow.operation import EngineOperator
from gateway.flow.pipeline import Pipeline
from gateway.flow.ports import Backend
from gateway.guardrails.inspector import GuardrailInspector
from gateway.guardrails.moderation import BACKEND as MODERATION_BACKEND
from gateway.guardrails.moderation import CARD as MODERATION_CARD
from gateway.guardrails.moderation import ModerationBackend
from gateway.http_settings import HttpSettings
from gateway.identity.local_copies import IdentityCopies
from gateway.identity.metrics import IdentityCollector
from gateway.identity.providers import warnings_of_people
from gateway.identity.service import IdentityService
from gateway.limits.denial import denial
from gateway.limits.service import LimitService
from gateway.limits.store import ValkeyStore
from gateway.places import default_policy, snapshot_dir, spool_dir
from gateway.readiness import policy_state, read_parts
from gateway.routing.catalog import LOCAL_BACKEND, Found, catalog_from
from gateway.routing.language import LanguageDetector
from gateway.routing.router import ComplexityRouter
from gateway.server import GatewayServer, make_server, plan_for
from gateway.settings import AuditSettings, Settings
from gateway.storage.idempotency import IdempotencyStore
from gateway.storage.migrate import upgrade
from gateway.storage.postgres import make_engine
from gateway.storage.postgres_watch import PostgresWatch
from gateway.storage.valkey import ValkeyLink, parse_address, tls_context
from gateway.telemetry.loop_lag import watch_loop_lag
from gateway.telemetry.metrics import GatewayMetrics, PartCollector, StateCollector
from gateway.wiring.admin_api import AdminParts, admin_routers
from gateway.wiring.batches import batch_parts
from gateway.wiring.identity import identity_parts
from gateway.wiring.running_services import Services

_log = logging.getLogger("esclusa.wiring")


@asynccontextmanager
async def open_services(
    settings: Settings, progress: BootProgress | None = None, descriptors: DescriptorPlan | None = None
) -> AsyncIterator[Services]:
    """Build and start everything; on leaving, stop and flush it in reverse. Raises `ConfigError`."""
    descriptors = descriptors or plan_for(settings, ENOUGH)
    progress = progress if progress is not None else BootProgress()
    clock, ids = SystemClock(), SystemIds()
    files = await asyncio.to_thread(read_model_files, settings.models)
    found = {name: Found(*facts) for name, facts in files.items()}
    now = int(clock.now().timestamp())
    catalog = catalog_from(settings, found, now, [replace(MODERATION_CARD, created=now)])
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    node_id = socket.gethostname()
    version = installed_version("esclusa")
    async with AsyncExitStack() as stack:
        progress.update("opening the database", 0.0)
        engine = await _database(settings, stack, progress)
        progress.update("starting services", 50.0)
        keys = _content_keys(settings.audit)
        sealer = None if keys is None else ContentSealer(keys, timedelta(days=settings.audit.content_retention_days))
        inspector = GuardrailInspector(settings.guardrails)
        stack.callback(inspector.close)
        audit = AuditService(
            engine,
            settings=settings.audit,
            spool_dir=spool_dir(settings),
            clock=clock,
            ids=ids,
            node_id=node_id,
            gateway_version=version,
            sealer=sealer,
            redact=inspector.redacted,
        )
        try:
            await _start(audit, stack)
        except OSError as error:
            place = error.filename or spool_dir(settings)
            raise ConfigError(
                f"the audit spool cannot be used: {place}: {error.strerror or error}",
                hint="give the gateway a folder it may write to, in `audit.spool_dir` or `local.data_dir`",
            ) from error
        access = AccessService(
            catalog=catalog.all(),
            clock=clock,
            repository=PolicyRepository(engine),
            seed=settings.access.policy_file or default_policy(),
            settings=settings.access.model_copy(update={"snapshot_dir": snapshot_dir(settings)}),
            seals_content=sealer is not None,
        )
        await _start(access, stack)
        copies = IdentityCopies(snapshot_dir(settings), settings.identity)
        callers = identity_parts(engine, settings.identity, clock, copies=copies)
        identity = callers.service
        await _start(identity, stack)
        own_boot, dead_boots = audit.boots
        limits = _limiter(settings, clock, ids, own_boot, dead_boots)
        await _start(limits, stack)
        backends, loaded, engines = await _backends(settings, stack, progress, registry)
        pipeline = Pipeline(
            authenticator=identity,
            authorizer=access,
            limiter=limits,
            catalog=catalog,
            router=ComplexityRouter(settings.routing, LanguageDetector()),
            backends={**backends, MODERATION_BACKEND: ModerationBackend(inspector)},
            audit=audit,
            clock=clock,
            salt=cache_salt(secrets.token_bytes(32)),
            denial=denial,
            inspector=inspector,
            observer=metrics,
        )
        in_flight = InFlight()
        registry.register(
            StateCollector(
                {
                    "audit": audit.status,
                    "limits": limits.state,
                    "policy": lambda: policy_state(access),
                    "http": lambda: {
                        "in_flight": in_flight.count,
                        "rejected": in_flight.rejected,
                        "operators": in_flight.operators,
                    },
                }
            )
        )
        registry.register(IdentityCollector(identity.status))
        guard = PermissionGuard(identity, access, audit)
        admin = AdminParts(
            access=access,
            identity=callers,
            requests=IdempotencyStore(engine),
            limits=limits,
            audit=AuditReader(engine, cursor_key=audit.cursor_key, settle=audit.settle, key=audit.commitment_key),
            contents=ContentReader(engine, sealer, settle=audit.settle),
            guard=guard,
            clock=clock,
            ids=ids,
            node_id=node_id,
            engines=engines,
        )
        responses = ResponseStore(engine, sealer, clock)
        stores = Stores(responses, ConversationStore(engine, sealer, responses, clock, ids))
        sweeping = asyncio.create_task(responses.keep_sweeping(), name="response retention")
        stack.callback(sweeping.cancel)
        kept_for_callers = batch_parts(
            settings,
            engine,
            keys,
            pipeline,
            stores,
            identity,
            guard,
            clock,
            ids,
            busy=lambda: in_flight.count * 2 > descriptors.requests,
        )
        stack.push_async_callback(kept_for_callers.worker.close)
        registry.register(StateCollector({"batch": kept_for_callers.worker.state}))
        lag = asyncio.create_task(watch_loop_lag(metrics.loop_lag), name="loop lag")
        stack.callback(lag.cancel)

        watch = PostgresWatch(engine.url.render_as_string(hide_password=False))
        watching = asyncio.create_task(watch.run(), name="postgres watch")
        stack.callback(watching.cancel)

        def parts() -> tuple[Part, ...]:
            return read_parts(
                audit, access, identity, limits, backends, watch, descriptors, kept_for_callers.worker.readiness
            )

        registry.register(PartCollector(parts))
        registry.register(StateCollector({"postgres": watch.status, "descriptors": lambda: measure(descriptors)}))

        yield Services(
            settings=settings,
            version=version,
            clock=clock,
            ids=ids,
            pipeline=pipeline,
            authenticator=identity,
            authorizer=access,
            audit=audit,
            guard=guard,
            stores=stores,
            readiness=lambda: Readiness.of(parts()),
            registry=registry,
            in_flight=in_flight,
            descriptors=descriptors,
            count=lambda answer, count: audit.account(
                answer.request_id, answer.status, answer.code, answer.source, answer.route, count
            ),
            admin_routers=admin_routers(admin),
            batches=kept_for_callers,
            loaded=loaded,
            backends=backends,
            engines=engines,
            warnings=lambda: (*access.warnings, *warnings_of_people(settings.identity, settings.access)),
        )


def startup_server(progress: BootProgress, http: HttpSettings) -> tuple[StartupApp, GatewayServer]:
    """The app that answers while the services are being opened, and the server that it runs on."""
    ids, refusals = SystemIds(), Refusals()
    app = StartupApp(progress, ids, refusals, dialect_of)
    return app, make_server(app, http, ids, refusals)


async def _database(settings: Settings, stack: AsyncExitStack, progress: BootProgress) -> AsyncEngine:
    if settings.store.database_url is None:
        raise ConfigError("no database is configured", hint="set DATABASE_URL, or run `esclusa serve --local`")
    url = settings.store.database_url.get_secret_value()
    engine = make_engine(url, pool_size=settings.store.database_pool)
    stack.push_async_callback(engine.dispose)
    progress.update("migrating the database", 20.0)
    try:
        await upgrade(url)
    except (OSError, SQLAlchemyError) as error:
        # A replica that restarts while the database is away serves from its last good policy.
        reason = str(error) if isinstance(error, OSError) else type(error).__name__
        _log.warning("the database does not answer; its schema was not checked: %s", reason)
    return engine


def _content_keys(settings: AuditSettings) -> ContentKeys | None:
    """None without keys: what must be stored encrypted is then refused. Raises `ConfigError`."""
    configured = settings.content_keys
    return load_content_keys(
        configured.get_secret_value() if configured is not None else None, settings.content_key_file
    )


def _limiter(
    settings: Settings, clock: Clock, ids: IdSource, own_boot: UUID, dead_boots: tuple[UUID, ...]
) -> LimitService:
    if settings.store.redis_url is None:
        raise ConfigError("no Valkey is configured", hint="set REDIS_URL, or run `esclusa serve --local`")
    stores = settings.store
    try:
        url = settings.store.redis_url.get_secret_value()
        tls = None
        if parse_address(url).tls:
            tls = tls_context(stores.redis_ca_file, stores.redis_cert_file, stores.redis_key_file)
        link = ValkeyLink(url, tls=tls)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(
            f"the certificates for Valkey cannot be used: {error.strerror or error}",
            hint="see `store.redis_ca_file`, `store.redis_cert_file` and `store.redis_key_file`",
        ) from None
    patience_s = settings.store.redis_timeout_ms / 1000
    store = ValkeyStore(link, clock=clock, prefix=settings.limits.key_prefix, timeout_s=patience_s)
    return LimitService(
        store,
        clock=clock,
        ids=ids,
        settings=settings.limits,
        patience_s=patience_s,
        holder=own_boot.hex,
        dead_holders=[boot.hex for boot in dead_boots],
    )


async def _backends(
    settings: Settings, stack: AsyncExitStack, progress: BootProgress, registry: CollectorRegistry
) -> tuple[Mapping[str, Backend], tuple[Callable[[], Awaitable[None]], ...], EngineOperator | None]:
    backends: dict[str, Backend] = {}
    for name, upstream in settings.upstreams.items():
        if name in (LOCAL_BACKEND, MODERATION_BACKEND):
            raise ConfigError(f"an upstream cannot be named `{name}`", hint="choose another name")
        remote = OpenAIBackend(name, upstream)
        stack.push_async_callback(remote.aclose)
        backends[name] = remote
    local = tuple(model for model in settings.models if model.path is not None)
    if not local:
        return backends, (), None
    from gateway.backends.local_engine import LocalBackend

    progress.update("loading models", 0.0)
    engine = LocalBackend(local, settings.engine)
    stack.push_async_callback(engine.aclose)
    engine.register_metrics(registry)
    engine.start()
    backends[LOCAL_BACKEND] = engine
    return backends, (engine.wait,), engine.operations


async def _start(service: IdentityService | AccessService | LimitService | AuditService, stack: AsyncExitStack) -> None:
    """Closed even when its start fails half-way."""
    stack.push_async_callback(service.close)
    await service.start()
