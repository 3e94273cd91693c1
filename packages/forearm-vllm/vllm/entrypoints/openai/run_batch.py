"""`python -m vllm.entrypoints.openai.run_batch FLAGS` is `forearm run-batch FLAGS`."""

import sys

from forearm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["run-batch", *sys.argv[1:]]))
