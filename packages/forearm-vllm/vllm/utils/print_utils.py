"""Prints embeddings."""

__all__ = ["print_embeddings"]


def print_embeddings(embeds: list[float], prefix: str = "Embeddings") -> None:
    """Print the first four numbers of a vector and its length."""
    shown = ", ".join(map(str, embeds[:4])) + (", ..." if len(embeds) > 4 else "")
    print(f"{prefix}: [{shown}] (size={len(embeds)})")
