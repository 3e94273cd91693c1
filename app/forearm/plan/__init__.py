"""`forearm plan`: what a model needs and what a machine gives it, before anything is downloaded: `forearm plan`."""
