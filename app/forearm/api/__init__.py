"""One gunicorn worker: HTTP and text. It shares wire.py with the engine and nothing else."""
