"""Cores of Arm servers by MIDR_EL1's implementer and part number, and the names of the processors that have them."""

from __future__ import annotations

from dataclasses import dataclass

from forearm.plan.machines import GENERATIONS, GravitonGeneration

ARM, NVIDIA, MICROSOFT, AMPERE = 0x41, 0x4E, 0x6D, 0xC0  # implementers
AMAZON = "Amazon EC2"  # the machine's maker (DMI)


@dataclass(frozen=True)
class ArmCore:
    """A core type. features: what the kernel must report, by names of Linux' arch/arm64/kernel/cpuinfo.c."""

    name: str
    features: tuple[str, ...]


_DOT = ("asimd", "asimddp", "asimdhp", "atomics")
_MATRIX = (*_DOT, "bf16", "i8mm")
_SVE = (*_MATRIX, "sve")
_SVE2 = (*_SVE, "sve2")
# Numbers as Linux and util-linux' lscpu list them.
CORES = {
    (ARM, 0xD0C): ArmCore("Neoverse N1 (Graviton2, Altra)", _DOT),
    (ARM, 0xD40): ArmCore("Neoverse V1 (Graviton3)", _SVE),
    (ARM, 0xD4F): ArmCore("Neoverse V2 (Graviton4, Google Axion C4A, NVIDIA Grace)", _SVE2),
    (ARM, 0xD49): ArmCore("Neoverse N2", _SVE2),
    (ARM, 0xD8E): ArmCore("Neoverse N3 (Google Axion N4A)", _SVE2),
    (ARM, 0xD84): ArmCore("Neoverse V3 (Graviton5, Azure Cobalt 200)", _SVE2),
    (ARM, 0xD83): ArmCore("Neoverse V3AE", _SVE2),
    (MICROSOFT, 0xD49): ArmCore("Azure Cobalt 100 (Neoverse N2)", _SVE2),
    (MICROSOFT, 0xD84): ArmCore("Azure Cobalt 200 (Neoverse V3)", _SVE2),
    (NVIDIA, 0x010): ArmCore("NVIDIA Vera (Olympus)", _SVE2),
    (AMPERE, 0xAC3): ArmCore("AmpereOne", _MATRIX),
    (AMPERE, 0xAC4): ArmCore("AmpereOne", _MATRIX),
}
# Processors that share a core type are told apart by the machine's maker.
BY_MAKER = {
    ("Google", 0xD4F): "Google Axion C4A (Neoverse V2)",
    ("Google", 0xD8E): "Google Axion N4A (Neoverse N3)",
    ("Google", 0xD0C): "Ampere Altra (Neoverse N1)",
    ("NVIDIA", 0xD4F): "NVIDIA Grace (Neoverse V2)",
    ("Microsoft", 0xD0C): "Ampere Altra (Neoverse N1)",
    ("Microsoft", 0xD49): "Azure Cobalt 100 (Neoverse N2)",
    ("Microsoft", 0xD84): "Azure Cobalt 200 (Neoverse V3)",
    ("Ampere", 0xD0C): "Ampere Altra (Neoverse N1)",
}


def graviton(implementer: int, part: int, maker: str) -> GravitonGeneration | None:
    """Return the Graviton with this core, unless the maker is another one than Amazon; a 3E has the number of 3.

    maker: the machine's maker after DMI; "" if it is not known.
    """
    if maker not in ("", AMAZON):
        return None
    return next((one for one in GENERATIONS if (ARM, one.part) == (implementer, part)), None)


def processor_name(implementer: int, part: int, maker: str) -> str:
    """Return the processor's name, or the core's numbers if they are not known; maker as in graviton()."""
    generation = graviton(implementer, part, maker)
    if generation is not None:
        return f"{generation.name} ({generation.core})"
    named = (name for (its, of), name in BY_MAKER.items() if of == part and maker.startswith(its))
    core = CORES.get((implementer, part))
    return next(named, core.name if core else f"implementer {implementer:#x}, part {part:#x}")


def of_midr(midr: int) -> tuple[int, int]:
    """Return implementer and part number in a value of MIDR_EL1."""
    return midr >> 24 & 0xFF, midr >> 4 & 0xFFF
