"""deploy/kubernetes against Kubernetes' own schemas (which come with the package), and what the pods must keep to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
RESOURCES: list[dict[str, Any]] = [
    one for path in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
]


def named(kind: str) -> dict[str, Any]:
    return next(one for one in RESOURCES if one["kind"] == kind)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one["kind"])
def test_every_manifest_fits_its_schema(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_the_schema_check_finds_mistakes() -> None:
    wrong = {**named("Service"), "spec": {"selector": {"app": "forearm"}, "prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_pod_is_restricted_guaranteed_and_probed() -> None:
    pod = named("Deployment")["spec"]["template"]["spec"]
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


def test_everything_finds_the_deployment() -> None:
    labels = named("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert named("Service")["spec"]["selector"] == labels
    assert named("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert named("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == named("Deployment")["metadata"]["name"]
