"""`python -m vllm.collect_env` is `forearm collect-env`."""

import sys

from forearm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["collect-env", *sys.argv[1:]]))
