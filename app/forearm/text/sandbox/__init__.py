"""Work whose amount clients choose, done in processes that can be killed."""
