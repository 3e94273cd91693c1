"""What `serve run forearm.ray:app` builds: doors that take HTTP in, and servers that each run a whole forearm."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from forearm.ray.door import Door
from forearm.ray.server import Server
from ray import serve

_ROUTER = "forearm.ray.router.PrefixAware"


def _flags(value: Any) -> Any:
    """On the command line one text, in YAML a list."""
    return shlex.split(value) if isinstance(value, str) else value


class Arguments(BaseModel):
    """`name=value` on the command line of `serve run`, or `args:` in YAML."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field("", description="folder or Hugging Face id; empty: the demo model")
    flags: Annotated[list[str], BeforeValidator(_flags)] = Field([], description="further flags of forearm serve")
    min_replicas: int = Field(1, ge=1, le=1000)
    max_replicas: int = Field(1, ge=1, le=1000)
    cpus: float = Field(1, gt=0, description="of a replica; whole ones are as many threads of its engine")
    bind: str = Field("nobind", description="VLLM_CPU_OMP_THREADS_BIND; auto where a replica has a machine to itself")
    target_ongoing_requests: float = Field(16, gt=0, description="of a replica, on average: more of it start beyond")
    max_ongoing_requests: int = Field(256, ge=1, description="of a replica; more wait at the door")
    max_queued_requests: int = Field(1024, ge=1, description="that wait at a door; more get 503 and Retry-After")
    doors: int = Field(1, ge=1, le=100, description="processes that take HTTP in")
    door_cpus: float = Field(0.5, ge=0)
    ready_timeout_s: float = Field(600, gt=0, description="that a model may take to load")
    drain_s: float = Field(60, ge=0, description="that open requests have when a replica has to go")

    @model_validator(mode="after")
    def _ordered(self) -> Arguments:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is more than max_replicas {self.max_replicas}")
        return self


def app(args: Arguments) -> Application:
    """The application, for `serve run` and `serve deploy`."""
    servers = serve.deployment(
        Server,
        name="Server",
        ray_actor_options={"num_cpus": args.cpus},
        autoscaling_config={
            "min_replicas": args.min_replicas,
            "max_replicas": args.max_replicas,
            "target_ongoing_requests": args.target_ongoing_requests,
        },
        max_ongoing_requests=args.max_ongoing_requests,
        max_queued_requests=args.max_queued_requests,
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=args.drain_s,
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER, request_routing_stats_period_s=1),
    )
    doors = serve.deployment(
        Door,
        name="Door",
        num_replicas=args.doors,
        ray_actor_options={"num_cpus": args.door_cpus},
        max_ongoing_requests=args.max_ongoing_requests * args.max_replicas + args.max_queued_requests,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=args.drain_s,
    )
    argv = [*([args.model] if args.model else []), *args.flags]
    return doors.bind(servers.bind(argv, args.bind, args.ready_timeout_s, args.drain_s))
