"""Everything below a route: connections and their limits, the HTTP protocol, bodies, credentials, refusals."""
