"""Ends what vLLM starts for several processes; forearm's engine is in this one."""

import gc

__all__ = ["cleanup_dist_env_and_memory", "destroy_distributed_environment", "destroy_model_parallel"]


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Free the memory of engines that nothing refers to any more."""
    gc.collect()


def destroy_model_parallel() -> None:
    """Do nothing: there are no groups of processes."""


def destroy_distributed_environment() -> None:
    """Do nothing: there are no groups of processes."""
