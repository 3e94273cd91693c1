"""`python -m forearm` is the `forearm` command."""

from forearm.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
