"""deploy/kubernetes against Kubernetes' own schemas (which come with the package), and what the pods must keep to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from forearm import metrics

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
RESOURCES: list[dict[str, Any]] = [
    one for path in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
]


def named(kind: str) -> dict[str, Any]:
    return next(one for one in RESOURCES if one["kind"] == kind)


# KEDA defines its own kinds; the Kubernetes package has no schemas for them.
@pytest.mark.parametrize(
    "resource", [one for one in RESOURCES if "keda.sh/" not in one["apiVersion"]], ids=lambda one: one["kind"]
)
def test_every_manifest_fits_its_schema(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_the_schema_check_finds_mistakes() -> None:
    wrong = {**named("Service"), "spec": {"selector": {"app": "forearm"}, "prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def restricted(workload: dict[str, Any]) -> None:
    """Assert that the pods of a workload are restricted, guaranteed their resources, and probed."""
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"]["cpu"].isdigit(), "static CPU manager: whole cores"
    assert pod["securityContext"]["runAsNonRoot"]
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    assert paths == ["/startupz", "/readyz", "/livez"]
    drain = int(container["args"][container["args"].index("--shutdown-timeout") + 1])
    assert pod["terminationGracePeriodSeconds"] > drain + container["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_the_pod_is_restricted_guaranteed_and_probed() -> None:
    restricted(named("StatefulSet"))


def test_everything_finds_the_pods() -> None:
    workload = named("StatefulSet")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert named("Service")["spec"]["selector"] == labels
    assert workload["spec"]["serviceName"] == named("Service")["metadata"]["name"]
    assert named("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert named("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    for scaler in ("HorizontalPodAutoscaler", "ScaledObject"):
        target = named(scaler)["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == ("StatefulSet", workload["metadata"]["name"])


def test_pods_are_scaled_by_series_that_there_are() -> None:
    queries = [trigger["metadata"]["query"] for trigger in named("ScaledObject")["spec"]["triggers"]]
    asked = {re.search(r"vllm:\w+", query)[0] for query in queries}  # type: ignore[index]
    asked |= {
        one["pods"]["metric"]["name"].replace("vllm_", "vllm:")
        for one in named("HorizontalPodAutoscaler")["spec"]["metrics"]
    }
    source = Path(metrics.__file__).read_text()
    assert [series for series in sorted(asked) if f'"{series}"' not in source] == []
