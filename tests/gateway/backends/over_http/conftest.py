from tests.fakes.stage import (  # noqa: F401
    _plain_upstream,
    issuer,
    stage,
    stage_database_url,
    upstream_thread,
)
