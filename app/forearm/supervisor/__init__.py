"""Process supervision: start the engines and gunicorn, watch them, restart them, end them in order."""
