"""HTTP around the routes: access log, authentication, rate limits, errors, request bodies, tracing."""
