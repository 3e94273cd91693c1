"""A gunicorn worker as a process: its class, configuration, signals and metric files."""
