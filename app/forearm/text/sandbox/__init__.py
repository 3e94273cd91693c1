"""Run work whose amount clients choose in processes that can be killed."""
