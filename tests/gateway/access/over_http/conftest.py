from tests.fakes.stage import (  # noqa: F401
    _plain_upstream,
    issuer,
    stage,
    stage_database_url,
    stage_overrides,
    upstream_thread,
)
