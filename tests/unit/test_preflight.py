"""The role's preflight names Arm servers and refuses kernels that hide features; Ansible itself runs its tasks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from forearm.plan.arm_cores import CORES

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "ansible" / "roles" / "forearm"
ANSIBLE = ROOT / "build" / "deploy" / "bin" / "ansible-playbook"
SVE2 = "asimd asimddp asimdhp atomics bf16 i8mm sve sve2"
HIDES = "has asimd asimddp asimdhp atomics bf16 i8mm sve sve2, but the kernel does not report"
# For each host: its vendor, the CPU as its kernel shows it, and the beginning of preflight's answer.
HOSTS = {
    "m9g": ("Amazon EC2", f"Features\t: {SVE2}\n0x00000000410fd840", "Graviton5"),
    "m9g_without_sysfs": (
        "Amazon EC2",
        "Features\t: asimd sve\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd84",
        f"Graviton5 {HIDES}",
    ),
    "c4a": ("Google", "Features\t: asimd\n0x00000000410fd4f1", f"Google Axion C4A {HIDES}"),
    "grace": ("NVIDIA", f"Features\t: {SVE2}\n0x00000000410fd4f0", "NVIDIA Grace"),
    "cobalt": ("Microsoft Corporation", f"Features\t: {SVE2}\n0x000000006d0fd490", "Azure Cobalt 100"),
    "altra": ("Ampere(R)", "Features\t: asimd asimddp asimdhp atomics\n0x00000000413fd0c1", "Ampere Altra"),
    "unknown": ("", "Features\t: asimd\n0x00000000480fd010", "another Arm core"),
}


@pytest.mark.skipif(not ANSIBLE.exists(), reason="no Ansible: make build/deploy/.installed")
def test_preflight_names_the_processor_and_what_its_kernel_hides(tmp_path: Path) -> None:
    tasks = {task["name"]: task for task in yaml.safe_load((ROLE / "tasks" / "preflight.yml").read_text())}
    facts = {"architecture": "aarch64", "system_vendor": "{{ maker }}", "cacheable": True}  # into ansible_facts, too
    play = {
        "hosts": "all",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROLE / "vars" / "main.yml")],
        "tasks": [
            {"ansible.builtin.set_fact": facts},
            tasks["Determine the processor"],
            tasks["Refuse a kernel that hides the processor's features"],
        ],
    }
    hosts = {name: {"maker": maker, "forearm_cpu": {"stdout": cpu}} for name, (maker, cpu, _) in HOSTS.items()}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))

    command = [ANSIBLE, "-i", tmp_path / "hosts.yml", tmp_path / "play.yml"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout

    answers = dict(re.findall(r'(?:ok|fatal): \[(\w+)\](?:: FAILED!)? => \{[^}]*?"msg": "([^"]*)"', said))
    assert set(answers) == set(HOSTS), said
    assert {name: answers[name][: len(begin)] for name, (_, _, begin) in HOSTS.items()} == {
        name: begin for name, (_, _, begin) in HOSTS.items()
    }


def test_preflight_and_doctor_know_the_same_cores() -> None:
    known = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["forearm_cores"]
    assert known.pop("41d08")["features"] == ["asimd"]  # Graviton1's core, which plan and doctor do not know

    wanted = {f"{implementer:02x}{part:03x}": core.features for (implementer, part), core in CORES.items()}

    assert {number: tuple(core["features"]) for number, core in known.items()} == wanted
