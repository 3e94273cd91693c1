"""`forearm bench`: how fast a server or this machine is, asked and reported as `vllm bench` does."""
