"""A gunicorn worker process: its class, configuration, signals and metric files."""
