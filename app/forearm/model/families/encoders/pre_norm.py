"""Encoders whose norms stand before each half of a layer, as those of GPT-2: their residual is never normalized."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, ModelConfig
from forearm.model.families.decoder import FamilyInputs, flat_rope
from forearm.model.families.encoders.bert_like import BERT, learned, padding_of

_XL = {
    "input_norm": "attention.self_attn_layer_norm", "pre_mlp_norm": "LayerNorm", "final_norm": "encoder.LayerNorm",
}  # fmt: skip
_PRE = {
    "input_norm": "attention.LayerNorm", "pre_mlp_norm": "intermediate.LayerNorm", "final_norm": "LayerNorm",
    "embed_norm": "embeddings.LayerNorm",
}  # fmt: skip
_MEGATRON = {"input_norm": "attention.ln", "pre_mlp_norm": "ln", "final_norm": "encoder.ln"}
_ESM = {
    "input_norm": "attention.LayerNorm", "pre_mlp_norm": "LayerNorm", "final_norm": "encoder.emb_layer_norm_after",
    "embed_norm": "embeddings.layer_norm",
}  # fmt: skip


def xlm_roberta_xl(inputs: FamilyInputs) -> ModelConfig:
    """XLM-RoBERTa XL and XXL."""
    inputs = inputs.with_defaults(max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)
    return _pre_norm(inputs, padding_of(inputs, 1) + 1, _XL)


def roberta_prelayernorm(inputs: FamilyInputs) -> ModelConfig:
    """RoBERTa-PreLayerNorm: efficient_mlm; its embeddings have a norm, too."""
    inputs = inputs.with_defaults(max_position_embeddings=512)
    return _pre_norm(inputs, padding_of(inputs, 1) + 1, _PRE, embed_norm=True)


def megatron_bert(inputs: FamilyInputs) -> ModelConfig:
    """Megatron-BERT: BERT with norms before the halves of its layers."""
    return _pre_norm(inputs.with_defaults(max_position_embeddings=512), 0, _MEGATRON)


def esm(inputs: FamilyInputs) -> ModelConfig:
    """ESM-1b and ESM-2: proteins, a token for each amino acid; rotary angles in ESM-2, else learned positions.

    Trained with 0.15 * 0.8 of the tokens masked, whose embeddings were 0: others are multiplied with the share of the
    rest, and by that of a text that has masks itself (token_dropout).
    Source: Lin et al. 2023, doi:10.1126/science.ade2574.
    """
    keys = inputs.keys
    keys.only(is_folding_model=False)
    for key in ("esmfold_config", "vocab_list"):
        keys.get(key)  # marks it as read: they concern folding
    kind = keys.text("position_embedding_type", "absolute")
    if kind not in ("absolute", "rotary"):
        raise keys.wrong("position_embedding_type", "absolute or rotary")
    inputs = inputs.with_defaults(max_position_embeddings=1026)
    differs: dict[str, Any] = {"token_types": 0}
    if keys.flag("token_dropout"):
        mask, most = keys.integer("mask_token_id"), keys.integer("vocab_size") - 1
        if not 0 <= mask <= most:
            raise keys.wrong("mask_token_id", f"0 to {most}")
        differs |= {"embedding_scale": 1 - 0.15 * 0.8, "dropped_token": mask}
    rotary = kind == "rotary"
    # Only its own keys, for the learned form's checks: an ESM has no other activation than GELU.
    plain = replace(inputs, keys=inputs.keys.with_values(position_embedding_type="absolute", hidden_act="gelu"))
    first = 0 if rotary else padding_of(plain, 1) + 1
    config = _pre_norm(plain, first, _ESM, embed_norm=keys.flag("emb_layer_norm_before"), **differs)
    if not rotary:
        return config
    angles, longest = flat_rope(inputs, config.head_dim, partial=False, interleaved=False)
    return replace(
        config,
        learned_positions=False,
        layers=tuple(replace(layer, mixer=Attention(rope=0)) for layer in config.layers),
        ropes=(angles,),
        max_positions=longest,
    )


def _pre_norm(inputs: FamilyInputs, first_position: int, norms: dict[str, str], **differs: Any) -> ModelConfig:
    """Return a BERT whose norms have these names, and stand before the halves of its layers."""
    config = learned(inputs, first_position, BERT)
    return replace(config, norm_residual="none", names=BERT | norms, **differs)
