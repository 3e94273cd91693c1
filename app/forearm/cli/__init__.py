"""Commands of the `forearm` command line, one a file."""
