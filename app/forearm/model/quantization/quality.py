"""The quality report beside a quantized checkpoint: what `forearm quantize` measured, and what a start makes of it."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from forearm.errors import ConfigError
from forearm.model.gguf.gguf import is_gguf

log = logging.getLogger(__name__)

FILE = "quality.json"
# A start warns of a model whose perplexity has risen more, by a tenth: twice the rise of good 4-bit formats on a model
# of 135M parameters, and larger models lose less.
MOST_RISE = 0.10
# The KL divergence, in nats, that int8 activations may add for their speed: about as much is added to the logarithm of
# the perplexity, 1 %. Where they add more, --quantization-activations auto leaves them float.
MOST_OF_ACTIVATIONS = 0.01


@dataclass(frozen=True)
class Loss:
    """A quantized model beside its floats, over all predictions of the texts.

    perplexity_rise, standard_error: relative. divergence: KL divergence from the floats' distribution, in nats.
    same_best_token: part of the predictions, 0 to 1.
    """

    perplexity_rise: float
    standard_error: float
    divergence: float
    same_best_token: float


@dataclass(frozen=True)
class QualityReport:
    """The losses of a quantized checkpoint, with int8 and with float activations.

    perplexity: of the floats. file: the name of the .gguf file; empty: the checkpoint is the folder.
    """

    perplexity: float
    predictions: int
    int8_activations: Loss
    float_activations: Loss
    file: str = ""

    @property
    def activations(self) -> str:
        """Return the activations for --quantization-activations auto."""
        return (
            "int8"
            if self.int8_activations.divergence - self.float_activations.divergence <= MOST_OF_ACTIVATIONS
            else "float"
        )

    def write(self, folder: Path) -> None:
        """Write quality.json, and a paragraph at the end of README.md. Raises: OSError."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")
        with (folder / "README.md").open("a") as file:
            file.write(f"\n## Quality\n\n{self.text}\n")

    @property
    def text(self) -> str:
        """Return a paragraph for readers."""

        def told(loss: Loss) -> str:
            return (
                f"{100 * loss.perplexity_rise:+.2f} % (standard error {100 * loss.standard_error:.2f} %), KL "
                f"divergence {loss.divergence:.4f} nats, the same best token {100 * loss.same_best_token:.1f} %"
            )

        return (
            f"Beside the weights that it was made of, over {self.predictions:,} predictions of English prose, "
            f"dialogue, lists and code (perplexity {self.perplexity:.2f}): with float activations the perplexity rises "
            f"by {told(self.float_activations)}; with int8 activations by {told(self.int8_activations)}. "
            "`forearm quantize` measured it."
        )


def read_report(place: Path) -> QualityReport | None:
    """Return the report in a model folder, or beside a .gguf file that it names; None if there is none.

    Raises: ConfigError for a file that is no report.
    """
    path = (place.parent if is_gguf(place) else place) / FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text())
        if is_gguf(place) and values.get("file") != place.name:
            return None
        int8, wide = (
            Loss(**{key: float(one) for key, one in values[name].items()})
            for name in ("int8_activations", "float_activations")
        )
        file = str(values.get("file", ""))
        return QualityReport(float(values["perplexity"]), int(values["predictions"]), int8, wide, file)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ConfigError(f"{path} is not a report of forearm quantize ({problem!r}); delete it") from None


def log_loss(place: Path, wide: bool) -> None:
    """Log what a checkpoint loses, if it has a report; warn above MOST_RISE. wide: float activations."""
    report = read_report(place)
    if report is None:
        return
    loss = report.float_activations if wide else report.int8_activations
    log.log(
        logging.WARNING if loss.perplexity_rise > MOST_RISE else logging.INFO,
        "quality: this quantization raised the perplexity by %.2f %% (%s; a warning above %.0f %%), KL divergence %.4f",
        100 * loss.perplexity_rise, FILE, 100 * MOST_RISE, loss.divergence,
    )  # fmt: skip
