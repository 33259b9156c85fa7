"""Routing: the catalog and the router. Gives a `RoutePlan` over permitted targets only."""
