"""The machine under an engine: cores, memory, NUMA nodes, CPU quotas."""
