"""HTTP around the routes: access log, keys, rate limits, errors, request bodies, tracing."""
