"""Changes that the user makes to a model's rotary angles: --rope-scaling, --rope-theta and --hf-overrides' keys."""

from __future__ import annotations

from typing import Any

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys

ROPE = ("rope_parameters", "rope_scaling", "rope_theta")


def with_rope(keys: Keys, changes: dict[str, Any] | None) -> Keys:
    """Return config.json's keys with these changes to the rotary angles; other settings stay as they are in the file.

    changes: values by config.json's names.

    Raises: ConfigError if the layers of the model have different angles, or the settings are not an object.
    """
    if not changes:
        return keys
    scaling = changes.get("rope_scaling", changes.get("rope_parameters"))
    if not isinstance(scaling, dict | None):
        raise ConfigError(f"--hf-overrides: rope_scaling is {scaling!r}; write a JSON object")
    old = keys.values.get("rope_parameters") or keys.values.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in old.values()) or "rope_local_base_freq" in keys.values:
        raise ConfigError(f"{keys.source}: its layers have different angles, which --rope-scaling can't change")
    kept = {name: old[name] for name in ("rope_theta", "partial_rotary_factor") if name in old}
    settings = {**(old if scaling is None else kept), **(scaling or {})}
    if "rope_theta" in changes:
        settings["rope_theta"] = changes["rope_theta"]
    values = {name: value for name, value in keys.values.items() if name not in ROPE}
    if "rope_theta" in keys.values:
        settings.setdefault("rope_theta", keys.values["rope_theta"])
    changed = Keys({**values, "rope_scaling": settings}, f"{keys.source} with its angles changed")
    changed.read = keys.read
    changed.read.update(("rope_parameters", "rope_theta"))
    changed.read.discard("rope_scaling")  # check_rope sees whether the family reads it
    return changed


def check_rope(keys: Keys, changes: dict[str, Any] | None) -> None:
    """Refuse changes to the rotary angles that the model's family does not read. Raises: ConfigError."""
    if changes and "rope_scaling" not in keys.read:
        raise ConfigError(f"{keys.source}: this model has no rotary angles that {', '.join(changes)} could change")
