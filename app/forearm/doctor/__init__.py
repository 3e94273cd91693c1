"""`forearm doctor`: checks of a host, each with its finding, the source of it, and a remedy."""
