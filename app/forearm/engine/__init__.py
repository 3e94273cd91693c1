"""Token ids in, token ids out: scheduling, KV blocks, sampling parameters, and the one door to C++."""
