"""The `vllm` command is the `forearm` command."""

import sys

from forearm.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
