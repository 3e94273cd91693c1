"""The Helm chart, by Helm's own library: lint, what it renders, and that deploy/kubernetes is made of it."""

from __future__ import annotations

import importlib
import platform
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.unit.test_kubernetes import restricted
from tools.kubernetes_files import CHART, FOLDER, files, rendered

from forearm import __version__

if platform.machine() != "x86_64":
    pytest.skip("helm-python-sdk has wheels for x86-64 alone", allow_module_level=True)
helm = importlib.import_module("helm_python")
ROOT = Path(__file__).resolve().parents[2]
DIGEST = "sha256:" + "5e" * 32


def objects(**values: Any) -> dict[str, dict[str, Any]]:
    """Return the objects that the chart renders, by kind."""
    return {one["kind"]: one for text in rendered(values).values() for one in yaml.safe_load_all(text)}


def test_lint_finds_nothing() -> None:
    found = helm.lint(str(CHART))

    assert found["total_charts_linted"] == 1
    assert [one for one in found["messages"] if "icon is recommended" not in one["error"]] == []


def test_lint_finds_a_broken_template(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: broken\nversion: 0.1.0\n")
    (tmp_path / "templates" / "a.yaml").write_text("a: {{ .Values.nothing.there }}\n")

    assert helm.lint(str(tmp_path))["errors"]


def test_the_files_for_kubectl_are_what_the_chart_renders() -> None:
    made = {path.name: path.read_text() for path in FOLDER.glob("*.yaml")}

    assert made == files(), "run: python tools/kubernetes_files.py"


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["appVersion"] == __version__


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"autoscaling": {"by": "hpa"}},
        {"secret": {"values": {"VLLM_API_KEY": 'a"b: c'}}},
        {"networkPolicy": {"from": [{"podSelector": {}}], "egress": [{"ports": [{"port": 4317}]}]}},
        {"models": {"claim": "shared"}, "tolerations": [{"key": "arm", "operator": "Exists"}], "affinity": {}},
        {"image": {"digest": DIGEST, "pullSecrets": ["registry"]}, "args": ["--max-model-len", "4096"]},
    ],
)
def test_what_is_rendered_fits_kubernetes_schemas(values: dict[str, Any]) -> None:
    found = objects(**values)

    assert {"ConfigMap", "Service", "PodDisruptionBudget", "StatefulSet", "NetworkPolicy"} <= found.keys()
    for one in found.values():
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    restricted(found["StatefulSet"])


def test_an_image_goes_by_its_digest() -> None:
    pod = objects(image={"repository": "registry.example/forearm", "digest": DIGEST})["StatefulSet"]["spec"]["template"]

    assert pod["spec"]["containers"][0]["image"] == f"registry.example/forearm@{DIGEST}"


def test_each_pod_has_a_volume_of_its_own_unless_one_is_shared() -> None:
    own, shared = objects()["StatefulSet"]["spec"], objects(models={"claim": "efs"})["StatefulSet"]["spec"]

    (claim,) = own["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "volumeClaimTemplates" not in shared
    volumes = {one["name"]: one for one in shared["template"]["spec"]["volumes"]}
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "efs"}


def test_a_secret_is_made_only_of_given_values_and_named_ones_must_be_there() -> None:
    def source(**values: Any) -> dict[str, Any]:
        pod = objects(**values)["StatefulSet"]["spec"]["template"]["spec"]
        found: dict[str, Any] = pod["containers"][0]["envFrom"][1]["secretRef"]
        return found

    assert "Secret" not in objects()
    assert source() == {"name": "forearm", "optional": True}
    assert source(secret={"name": "mine"}) == {"name": "mine", "optional": False}
    made = objects(secret={"values": {"VLLM_API_KEY": 'a"b'}})["Secret"]
    assert (made["metadata"]["name"], made["stringData"]) == ("forearm", {"VLLM_API_KEY": 'a"b'})


def test_prometheus_finds_the_pods_in_one_way() -> None:
    monitored = objects(serviceMonitor={"enabled": True, "labels": {"release": "prometheus"}})
    annotations = monitored["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]

    monitor = monitored["ServiceMonitor"]
    assert monitor["metadata"]["labels"] == {"app": "forearm", "release": "prometheus"}
    assert monitor["spec"]["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "15s"}]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= monitored["Service"]["metadata"]["labels"].items()
    assert "prometheus.io/scrape" not in annotations
    assert "prometheus.io/scrape" in objects()["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]


def test_the_pods_reach_names_and_https_alone() -> None:
    policy = objects()["NetworkPolicy"]["spec"]

    assert policy["podSelector"]["matchLabels"] == objects()["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert [one["port"] for rule in policy["egress"] for one in rule["ports"]] == [53, 53, 443]
    assert policy["ingress"] == [{"ports": [{"port": "http"}]}]
    assert "NetworkPolicy" not in objects(networkPolicy={"enabled": False})


@pytest.mark.parametrize(
    "values",
    [
        {"imagee": {}},
        {"image": {"digest": "latest"}},
        {"resources": {"cpu": "1500m"}},
        {"autoscaling": {"by": "vpa"}},
        {"config": {"A": 1}},
    ],
)
def test_a_wrong_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmValuesError, match="|".join(values)):
        rendered(values)


def test_packed_weights_stay_on_the_volume_of_the_models() -> None:
    """--weight-cache auto keeps them in HF_HOME: a volume in pods, compose and the role."""
    made = objects()
    [container] = made["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    written = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    image = re.search(r"HF_HOME=(\S+)", (ROOT / "Dockerfile.arm").read_text())
    unit = (ROOT / "ansible/roles/forearm/templates/forearm.service.j2").read_text()

    assert made["ConfigMap"]["data"]["HF_HOME"] in written
    assert image is not None
    assert f":{image[1]}\n" in (ROOT / "docker-compose.yml").read_text()
    assert "--env HF_HOME=/models/huggingface" in unit
    assert "forearm_models_folder }}:/models --volume" in unit
