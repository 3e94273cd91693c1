"""The application of `serve run forearm.ray:app`: doors that take HTTP requests, and servers that each run forearm."""

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
    """Split the flags of the command line, which are one text; in YAML they are a list."""
    return shlex.split(value) if isinstance(value, str) else value


class Arguments(BaseModel):
    """Arguments of the application: `name=value` on the command line of `serve run`, or `args:` in YAML."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field("", description="folder or Hugging Face id; empty: the demo model")
    flags: Annotated[list[str], BeforeValidator(_flags)] = Field([], description="further flags of forearm serve")
    min_replicas: int = Field(1, ge=1, le=1000)
    max_replicas: int = Field(1, ge=1, le=1000)
    cpus: float = Field(1, gt=0, description="CPUs of a replica; each whole one is a compute thread")
    bind: str = Field("nobind", description="VLLM_CPU_OMP_THREADS_BIND; auto where a replica has its own machine")
    target_ongoing_requests: float = Field(16, gt=0, description="mean open requests of a replica; Ray scales by it")
    max_ongoing_requests: int = Field(256, ge=1, description="most open requests of a replica; others wait at the door")
    max_queued_requests: int = Field(1024, ge=1, description="most requests waiting at a door; further ones get 503")
    doors: int = Field(1, ge=1, le=100, description="processes that take HTTP requests")
    door_cpus: float = Field(0.5, ge=0)
    ready_timeout_s: float = Field(600, gt=0, description="time in which a model must be loaded")
    drain_s: float = Field(60, ge=0, description="time of open requests to finish when a replica is removed")

    @model_validator(mode="after")
    def _ordered(self) -> Arguments:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is more than max_replicas {self.max_replicas}")
        return self


def app(args: Arguments) -> Application:
    """Build the application, for `serve run` and `serve deploy`."""
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
