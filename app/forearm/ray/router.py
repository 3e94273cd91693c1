"""Ray Serve's request router: a prompt goes to the replica that knows its beginning, as far as load allows."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from forearm.routing import PrefixRouter


class PrefixAware(FIFOMixin, RequestRouter):
    """A router of one door. Doors that never saw a prompt agree on its replica by rendezvous hashing.

    Replicas that were not ready in the last second, and those that have failed this request, come last.
    """

    def initialize_state(self, most_pieces: int = 65536, slack: int = 2) -> None:
        """Take request_router_kwargs, which are PrefixRouter's arguments."""
        self._prefixes: PrefixRouter[str] = PrefixRouter(most_pieces, slack)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Learn the current replicas from Ray."""
        super().update_replicas(replicas)
        self._prefixes.keep(replica.replica_id.unique_id for replica in replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica that has died, as Ray reports."""
        super().on_replica_actor_died(replica_id)
        self._prefixes.forget(replica_id.unique_id)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank the replicas: the one for this prompt, then the others that are ready, then the rest."""
        pieces, avoid = _asked(pending_request)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # where all are full, ask again after a pause
        here = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        good = {
            name: self.replica_queue_len_cache.get(replica.replica_id) or 0
            for name, replica in here.items()
            if name not in avoid and (replica.routing_stats or {}).get("ready", True)
        }
        if not good:
            return [list(here.values())] if here else []
        first = self._prefixes.choose(pieces, good)
        ranks = [[first], [name for name in good if name != first], [name for name in here if name not in good]]
        return [[here[name] for name in rank] for rank in ranks if rank]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember which replica took the request, as Ray reports."""
        self._prefixes.remember(_asked(pending_request)[0], replica_id.unique_id)


def _asked(request: PendingRequest | None) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    """Return the prompt's chain and the replicas to avoid."""
    given = {} if request is None else request.kwargs
    return tuple(given.get("pieces", ())), tuple(given.get("avoid", ()))
