"""`python -m vllm.entrypoints.openai.api_server FLAGS` is `forearm serve FLAGS`."""

import sys

from forearm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
