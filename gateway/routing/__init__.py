"""Which model: the catalogue and the router. Gives a `RoutePlan` over permitted targets only."""
