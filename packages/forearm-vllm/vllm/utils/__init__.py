"""Small functions that scripts import from vllm.utils; older releases have all of them here."""

import uuid

from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.network_utils import get_ip, get_open_port

__all__ = ["FlexibleArgumentParser", "get_ip", "get_open_port", "random_uuid"]


def random_uuid() -> str:
    """Return 16 random hexadecimal digits, as the id of a request."""
    return uuid.uuid4().hex[:16]
