"""Write deploy/kubernetes from the Helm chart: the objects of a release named forearm, for those who have no Helm.

Rendered by Helm's own library (the package helm-python-sdk), so that they are what `helm template` prints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "forearm"
FOLDER = ROOT / "deploy" / "kubernetes"
MADE = "# Made of deploy/helm/forearm by tools/kubernetes_files.py.\n"
ORDER = ("configmap", "service", "networkpolicy", "disruption", "statefulset", "autoscaler")


def rendered(values: dict[str, Any]) -> dict[str, str]:
    """Return the text of each template with these values over the chart's, by the template's name.

    Raises: helm_python.HelmValuesError for values that the chart's schema refuses.
    """
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name="forearm", namespace="default")
    return {Path(name).stem: text.strip() for name, text in texts.items() if text.strip()}


def files() -> dict[str, str]:
    """Return the text of each file of deploy/kubernetes."""
    objects = rendered({"autoscaling": {"by": "hpa"}})
    keda = rendered({"autoscaling": {"by": "keda"}})["autoscaler"]
    secret = rendered({"secret": {"values": {"VLLM_API_KEY": "change-me", "HF_TOKEN": ""}}})["secret"]
    first = (
        "# Create the secret from secret.example.yaml first, then: kubectl apply -f deploy/kubernetes/forearm.yaml\n"
        "# Replace the image with yours, by digest. Limits equal requests, and CPUs are whole numbers, so that the\n"
        "# pod's QoS class is Guaranteed: with the kubelet's --cpu-manager-policy=static it gets exclusive cores.\n"
    )
    second = (
        "# On clusters with KEDA, in place of the HorizontalPodAutoscaler of forearm.yaml: kubectl delete hpa\n"
        "# forearm. Set serverAddress to your Prometheus.\n"
    )
    third = "# Copy this file, fill it in and apply it; do not commit the copy.\n"
    return {
        "forearm.yaml": f"{MADE}{first}" + "\n---\n".join(objects[name] for name in ORDER) + "\n",
        "keda.example.yaml": f"{MADE}{second}{keda}\n",
        "secret.example.yaml": f"{MADE}{third}{secret}\n",
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text)
