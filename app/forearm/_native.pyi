"""The C++ module's face: types, shapes, and who owns the memory.

Arrays go in C-contiguous and are only read during the call. Everything the executor holds (packed weights, KV cache,
scratch) is its own; arrays that come out are copies that Python owns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from forearm.array_types import Float32Array, Int8Array, Int32Array, UInt8Array, UInt16Array, UInt32Array, UInt64Array
from forearm.config.number_formats import WeightFormat
from forearm.model.families.config import ModelConfig
from forearm.model.families.matrix_spec import MatrixSpec
from forearm.model.quantization.rounding import Rounding

def tier() -> str:
    """Name of the kernel tier in use; chosen at the first call.

    Raises: RuntimeError if FOREARM_TIER names one that this CPU can't run.
    """

def tier_names() -> list[str]:
    """The tiers this CPU runs, best first."""

def quarantined() -> list[tuple[str, str]]:
    """Tiers that would have been in use but gave wrong results in the test at start, each with the operation."""

def operand_form(weight_dtype: str) -> str:
    """What the tier in use rounds activations to, to multiply them with weights of this dtype: "float32", "float16",
    "bfloat16" or "int8" (integer weights of a format that is not `wide`)."""

def scratch_bytes(
    config: ModelConfig,
    matrices: Sequence[MatrixSpec],
    formats: Mapping[str, WeightFormat],
    step_tokens: int,
    step_logit_rows: int,
    max_model_len: int,
    threads: int,
    any_tier: bool = False,
) -> int:
    """Executor.scratch_bytes of an executor like this, before it is made: of the tier in use, or, `any_tier`, the most
    that it would be on a tier of any CPU.

    Raises: ValueError as Executor does.
    """

def kv_block_bytes(config: ModelConfig, kv_dtype: str, grouped: bool = False) -> int:
    """Executor.kv_bytes_per_block of an executor like this; grouped: its kv_groups."""

def kv_reaches(config: ModelConfig, kv_dtype: str) -> list[int]:
    """The groups that an executor with kv_groups divides its layers into: the tokens that a query sees at the most in
    each, its own among them; 0: all before. Those come first. One group: all layers see so many."""

def state_bytes(config: ModelConfig) -> int:
    """Executor.state_bytes_per_slot of an executor like this."""

def limits(cores: Sequence[int], threads: int, megabytes: int = 1024, seconds: float = 1.0) -> dict[str, float]:
    """What this machine can do, measured with the instructions of the tier in use.

    read_gb_s: GB/s at which `threads` threads read `megabytes` MB, each its own part.
    fma_gflops: GFLOP/s of float32 multiply-adds on registers, all threads.
    bf16_gflops, int8_gops: the same by the instructions that multiply bf16 and int8 weights, two operations a
    multiply-add; those of float32 where the tier has no others.
    Each is the best of the passes that start within `seconds`.
    """

class Executor:
    """One model in memory, its KV cache, its threads. Calls come from one thread at a time.

    config: read through the attributes of model/families/config.py's dataclass.
    matrices: what families' matrices(config) lists: embed, positions, types, distances, head, head_dense,
    layers.{i}.{qkv,o,up,down}, layers.{i}.{conv_in,conv_out}, layers.{i}.{mamba_in,mamba_out},
    layers.{i}.{scan_in,scan_select,scan_dt,scan_out},
    layers.{i}.{delta_in,delta_gates,delta_z,delta_a,delta_out}, layers.{i}.{latent_in,q_up,k_up,v_up,o},
    layers.{i}.{router,experts.up,experts.down,shared.up,shared.down}, dense.{i}. formats: of each of these, by name.
    kv_dtype: a KvDTypeName of config/number_formats.py; the keys of fp8 are int8.
    step_tokens, step_sequences, step_logit_rows: most tokens, sequences and logit rows of one forward().
    cores: empty (threads are not pinned) or one CPU id a thread.
    ranks: threads of each rank, neighbours in `cores`; empty: one rank of all. Each has its part of every matrix and of
    the KV cache, touched by its own threads, so on their NUMA node.
    beside: the executor of a model that this one drafts for, whose threads compute both, and which lends matrices of
    its own: those of config.shared. `matrices` and formats name them if rows are multiplied with them.
    Raises: ValueError naming what is wrong; MemoryError with the arithmetic before anything impossible is allocated.
    """

    def __init__(
        self,
        config: ModelConfig,
        matrices: Sequence[MatrixSpec],
        formats: Mapping[str, WeightFormat],
        kv_dtype: str,
        step_tokens: int,
        step_sequences: int,
        step_logit_rows: int,
        max_model_len: int,
        cores: Sequence[int],
        threads: int,
        ranks: Sequence[int] = (),
        kv_groups: bool = False,
        beside: Executor | None = None,
    ) -> None: ...
    @property
    def packed_bytes(self) -> int:
        """Bytes of all packed matrices and vectors."""
    @property
    def weights_mapped(self) -> bool:
        """True if the weights came from map_weights."""
    @property
    def scratch_bytes(self) -> int:
        """Bytes of everything else but the KV cache."""
    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes one block of 32 tokens takes: all layers, or those of a group."""
    @property
    def state_bytes_per_slot(self) -> int:
        """Bytes of the states that layers keep of one sequence; 0: they keep keys and values alone."""
    @property
    def threads(self) -> int: ...
    @property
    def barriers(self) -> int:
        """Barriers passed since the executor was made."""
    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = ...
    ) -> None:
        """Pack `data` as rows row .. row + len(data) - 1 of the matrix `name`, in its format: converted, or, where that
        has codes, rounded as kernels.h's RoundTask says with `rounding` (fp8: to nearest).

        name: embed, positions, types, distances, head, layers.{i}.{q,k,v,o,gate,up,down}, dense.{i},
        layers.{i}.conv_{b,c,x,out}, layers.{i}.mamba_{z,xbc,dt,out}, layers.{i}.delta_{q,k,v,z,b,a,out},
        layers.{i}.scan_{x,z,latent,b,c,dt,out}, layers.{i}.q_gate, layers.{i}.r, or
        layers.{i}.{router,shared_gate}, layers.{i}.{experts,shared}.{gate,up,down}. The experts' rows follow each
        other: row e * rows + r is row r of expert e.
        data: [rows, k], float32, or uint16 that holds the bits of float16 or bfloat16, as `dtype` says.
        Pieces of one matrix come in ascending order of rows.
        Raises: ValueError if there is no such matrix or the shape is not its.
        """
    def load_codes(
        self,
        name: str,
        codes: Int8Array | UInt8Array,
        scales: Float32Array,
        zeros: Int8Array | None = None,
        offsets: Float32Array | None = None,
        order: Int32Array | None = None,
        row: int = 0,
    ) -> None:
        """Pack rows that are already quantized, bit for bit.

        codes: [rows, k], int8 (of 4 bits those of kernels.h's nibble_code), or the bytes of fp8 as uint8.
        scales, zeros, offsets: [rows, groups], groups = ceil(k / group); scales must be representable in the format's
        scale_dtype.
        order: int32 [k], code column k multiplies activation order[k]; the same for all parts of a packed matrix, of
        experts for the rows of one of them.
        Raises: ValueError if there is no such matrix, its format has no codes, or shapes or values are not its.
        """
    def load_vector(self, name: str, data: Float32Array, row: int = 0) -> None:
        """Set a norm or bias: float32 [n].

        name: layers.{i}.{input_norm,post_attention_norm,pre_mlp_norm,post_mlp_norm,q_norm,k_norm} and final_norm
        (weights; stored as given, `norm_plus_one` is added here), the same with .bias (LayerNorm), and
        layers.{i}.{q,k,v,o,gate,up,down}.bias, head.bias, dense.{i}.{bias,norm,norm.bias}; of experts the biases of
        their matrices (row after row, as load_matrix) and layers.{i}.correction [count - always], of experts apart from
        their shared feed-forward layers.{i}.{router,pre_experts,post_experts,post_shared}_norm and
        layers.{i}.expert_scale [count]. layers.{i}.sinks [heads]. layers.{i}.scalar [1]. Of an embedding of each layer
        per_layer_norm [width] and layers.{i}.per_layer_norm.
        Of mixers with a state: layers.{i}.conv [channels * taps] and its .bias; of Mamba2 layers.{i}.{dt_bias,a_log,d}
        [heads] and gate_norm [heads * head_dim]; of lightning attention gate_norm alone; of Mamba layers.{i}.a_log
        [inner * state_dim], d [inner] and scan_norm [dt_rank + 2 * state_dim]: the norms of the latent, b and c. Of a
        layer with four convolutions layers.{i}.conv has those of keys, of values, and of the results of both halves,
        one after the other, and layers.{i}.feed_forward_scale [1] multiplies the last one's result. Of a bias by
        distance layers.{i}.relative_bias [dim * reach].
        input_norm goes before attention, post_attention_norm after it onto the residual, pre_mlp_norm before the MLP,
        post_mlp_norm after it: placement "pre" has input_norm and pre_mlp_norm, "post" post_attention_norm and
        post_mlp_norm, "sandwich" all four. q_norm and k_norm have head_dim values, or all heads' when qk_norm is full;
        of latent attention those of the latents, q_rank and rank values.
        """
    def save_weights(self, path: str, key: str) -> None:
        """Write all that was loaded to a file that map_weights takes, whole or not at all (a temporary file, renamed).

        Steps may be computed meanwhile: one thread writes, on cores that are idle.
        key: text that says which checkpoint this is and how it was read. Formats, shapes and the tier's layout are
        added.
        Raises: ValueError naming what has not been loaded; RuntimeError naming the file and the system's reason.
        """
    def map_weights(self, path: str, key: str) -> None:
        """Map what save_weights wrote, read-only, in place of loading; every byte is checked by hash, by all threads.

        Comes before any load_*, and finish_loading after it.
        Raises: ValueError saying why the file is of no use: not there, of another key, format or layout, damaged. The
        executor is as before then: load, and save anew.
        """
    def finish_loading(self) -> None:
        """Check that everything is there.

        Raises: ValueError naming every tensor, and the rows, that are missing.
        """
    def allocate_kv(self, blocks: int) -> None:
        """Allocate the KV cache: `blocks` blocks of 32 tokens, zeroed. Replaces one allocated before.

        Raises: MemoryError naming the size if it can't be had.
        """
    def merge_page(self) -> bool:
        """Make a huge page of small pages with the first tokens' blocks of a layer, which `allocate_kv` leaves in small
        pages so that the first answer comes sooner. Returns whether one was left.
        """
    def allocate_states(self, slots: int) -> None:
        """Allocate slots for the states of so many sequences. Replaces those allocated before.

        Raises: MemoryError naming the size if it can't be had; RuntimeError if the layers keep no states.
        """
    def copy_state(self, source: int, target: int) -> None:
        """Copy the states in slot `source` to slot `target`.

        Raises: ValueError naming a slot that was not allocated.
        """
    def forward(
        self,
        tokens: Int32Array,
        positions: Int32Array,
        starts: Int32Array,
        block_starts: Int32Array,
        blocks: Int32Array,
        logit_rows: Int32Array,
        types: Int32Array | None = None,
        states: Int32Array | None = None,
        hidden: Float32Array | None = None,
    ) -> None:
        """Compute one step (engine/batch.py's Batch): the whole model, the GIL released; logits stay inside.

        types: int32 [tokens], rows of the embedding of token types, for models that have them; None: all 0.
        states: int32 [sequences], the slot of each sequence, for models whose layers keep states; its state is that of
        its last computed position, and begins anew with position 0.
        Of a `pooled` model prompts are whole (they begin with position 0), and rows come out instead of logits.
        A block whose first position is computed is cleared first; the other positions are expected to follow.
        Raises: ValueError naming the array and the index if sizes, ids, positions or blocks are out of range.
        """
    def begin(
        self,
        tokens: Int32Array,
        positions: Int32Array,
        starts: Int32Array,
        block_starts: Int32Array,
        blocks: Int32Array,
        logit_rows: Int32Array,
        types: Int32Array | None = None,
        states: Int32Array | None = None,
    ) -> None:
        """Begin a step of a model whose modules another library computes (config.modules): arguments and errors are
        forward's. attend and multiply follow, and take_logits ends the step."""
    def attend(
        self,
        layer: int,
        q: Float32Array,
        k: Float32Array,
        v: Float32Array,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Float32Array | None = None,
    ) -> Float32Array:
        """Store the keys and values of the step's tokens in a layer of the KV cache, and attend; the GIL is released.

        q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]. window: keys i - window + 1 .. i are visible
        to position i; 0: all before it. sinks: [heads], logits that only enter the denominator.
        Returns: float32 [tokens, heads, head_dim].
        Raises: ValueError if the cache has no such layer, or a shape is not the step's.
        """
    def multiply(self, name: str, x: Float32Array, gate: str = "none") -> Float32Array:
        """Return x W^T + bias of a packed matrix, float32 [rows, n]; the GIL is released.

        x: [rows, k], at most step_tokens rows (or step_logit_rows, if those are more). gate: an activation, of a matrix
        of two interleaved parts: returns gate(x A^T) * (x B^T), [rows, n / 2].
        Raises: ValueError if there is no such matrix or the shape is not its.
        """
    def norm(self, x: Float32Array, weight: Float32Array, eps: float) -> Float32Array:
        """Return x / sqrt(mean(x^2) + eps) * weight, row by row, float32 [rows, columns]; the GIL is released.

        x: [rows, columns]; weight: [columns]. Raises: ValueError if these do not fit.
        """
    def rope(self, x: Float32Array, cos: Float32Array, sin: Float32Array) -> Float32Array:
        """Return heads rotated by pairs (i, i + dim / 2), float32 [1, tokens, heads, dim]; the GIL is released.

        x: [1, heads, tokens, dim], in any order in memory; cos, sin: [tokens, dim / 2].
        Raises: ValueError if these do not fit.
        """
    def add_half(
        self,
        norm: Float32Array,
        eps: float,
        first: str,
        last: str,
        gate: str = "none",
        scale: float = 0.0,
        window: int = 0,
    ) -> int:
        """Keep half a layer of Llama's code for compute_halves: x + last(... first(norm(x))). Returns its number.

        norm: [width], which is kept alive; first, last: packed matrices. gate none: the half that attends, with q, k
        and v side by side in `first`; scale and window are its attention's (0: no window). Another activation:
        last(gate(norm(x) A^T) * (norm(x) B^T)), with the interleaved parts A and B in `first`.
        Raises: ValueError if these do not fit.
        """
    def compute_halves(
        self, begin: int, end: int, layer: int, x: Float32Array, cos: Float32Array, sin: Float32Array
    ) -> Float32Array:
        """Compute the kept halves begin <= i < end, one after the other, in one call; the GIL is released.

        layer: of the KV cache, of the first half that attends; the others that attend have the next layers.
        x: [tokens, width]; cos, sin: [tokens, head_dim / 2]. Returns: float32 [tokens, width].
        Raises: ValueError if these do not fit.
        """
    def take_logits(self, logits: Float32Array) -> None:
        """Make these the step's logits, [rows, vocab_size]; sample and score read them.

        Raises: ValueError for more rows than step_logit_rows, or another width.
        """
    def record_inputs(self) -> None:
        """From now on keep the rows that each matrix is multiplied with in a step; of experts, sums of their squares.

        Raises: ValueError naming a matrix whose format is not float32.
        """
    def inputs(self, part: str) -> Float32Array:
        """A copy of the last step's rows before the matrix with this part, float32 [rows, k]; no rows: it was not
        multiplied. Of experts: the sums of the squares of all steps' rows, float32 [experts, k]."""
    def logits(self) -> Float32Array:
        """A copy of the last step's logits, float32 [logit_rows, vocab], for tests; of a pooled model of its rows,
        [logit_rows, hidden]."""
    def hidden(self) -> Float32Array:
        """A copy of the last step's rows behind the final norm, float32 [tokens, hidden]; no rows unless
        ModelConfig.keeps_hidden."""
    def pool(self, starts: Int32Array, head: int) -> Float32Array:
        """Vectors of a pooled model, float32 [texts, columns]: the mean of rows starts[i] .. starts[i + 1] - 1 of the
        last step's (sums in double, in order), through the layers of `head` behind it.

        starts: int32 [texts + 1].
        Raises: ValueError if a text has no rows, or more than the step had.
        """
    def sample(
        self,
        row: Int32Array,
        temperature: Float32Array,
        top_k: Int32Array,
        top_p: Float32Array,
        min_p: Float32Array,
        presence: Float32Array,
        frequency: Float32Array,
        repetition: Float32Array,
        seed: UInt64Array,
        counter: UInt64Array,
        prompt_starts: Int32Array,
        prompt_ids: Int32Array,
        output_starts: Int32Array,
        output_ids: Int32Array,
        bias_starts: Int32Array,
        bias_ids: Int32Array,
        bias: Float32Array,
        allowed_starts: Int32Array,
        allowed_ids: Int32Array,
        logprobs: Int32Array,
        mask: Int32Array,
        masks: UInt32Array,
        /,
    ) -> tuple[Int32Array, npt.NDArray[np.bool_], Float32Array, Int32Array, Int32Array, Float32Array]:
        """Choose a token for each line: arguments and results as engine/batch.py's Sampling and Sampled, in order."""
    def score(
        self, rows: Int32Array, tokens: Int32Array, alternatives: int
    ) -> tuple[Float32Array, Int32Array, Int32Array, Float32Array]:
        """As engine/batch.py's ScoredTokens, in order. `alternatives` 0: the given tokens alone."""

class Kernels:
    """One tier's operations, for tests and benchmarks: float32 arrays in and out, shapes as kernels.h has them.

    Raises: ValueError if this CPU has no such tier.
    """

    def __init__(self, tier: str) -> None: ...
    def gemm(
        self,
        a: Float32Array,
        w: Float32Array,
        dtype: str,
        bias: Float32Array | None = None,
        epilogue: str = "store",
        activation: str = "none",
        scale: float = 1.0,
        softcap: float = 0.0,
        residual: Float32Array | None = None,
        xielu: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
        gate_limit: float = math.inf,
        limit: float = math.inf,
    ) -> Float32Array:
        """epilogue(a w^T): a [m, k], w [n, k] rounded to `dtype`, bias [n]; returns [m, n]. xielu: its constants.

        Gated: rows of w (and bias) are the gate's, then up's, both bounded (GemmTask); returns [m, n / 2].
        `residual` is what "add" adds to.
        """
    def quantize(
        self,
        x: Float32Array,
        group: int,
        order: Int32Array | None = None,
        bits: Literal[8, 16] = 8,
        turned: bool = False,
    ) -> tuple[Int8Array, Float32Array, Int32Array]:
        """Rows as int8 activations: codes [rows, dim], scales and sums of codes [rows, groups].

        turned: groups are turned first (kernels.h, QuantizeTask).
        bits 16: two rows for each, its high and its low digits (native/kernels/kernels.h, Operand).
        """
    def round(
        self,
        w: Float32Array,
        dtype: str,
        group: int,
        scale_dtype: str = "float32",
        importance: Float32Array | None = None,
        feedback: Float32Array | None = None,
    ) -> tuple[Int8Array, Float32Array]:
        """Weights [rows, k] as codes of an integer `dtype`: codes [rows, k], scales [rows, groups].

        importance: [k], feedback: [2 * k * 16], as kernels.h's RoundTask has them.
        """
    def gemm_codes(
        self,
        a: Float32Array,
        codes: Int8Array,
        scales: Float32Array,
        dtype: str,
        group: int,
        zeros: Int8Array | None = None,
        offsets: Float32Array | None = None,
        scale_dtype: str = "float32",
        bits: Literal[8, 16] = 8,
    ) -> Float32Array:
        """a w^T with a [m, k] quantized as `quantize` does, w [n, k] as codes of an integer `dtype`; returns [m, n].

        scales, zeros, offsets: [n, groups], groups = ceil(k / group).
        """
    def embed(self, tokens: Int32Array, w: Float32Array, dtype: str, scale: float = 1.0) -> Float32Array:
        """scale * w[tokens], w [n, k] rounded to `dtype`."""
    def norm(
        self, x: Float32Array, weight: Float32Array | None, bias: Float32Array | None, eps: float, layer_norm: bool
    ) -> Float32Array:
        """x [rows, dim], weight and bias [dim]."""
    def add_norm(
        self, residual: Float32Array, x: Float32Array, weight: Float32Array | None, eps: float, scale: float
    ) -> Float32Array:
        """residual + scale * norm(x), all [rows, dim]."""
    def head_norm(self, x: Float32Array, weight: Float32Array | None, eps: float) -> Float32Array:
        """x [rows, heads, head_dim]."""
    def rope(self, x: Float32Array, cos: Float32Array, sin: Float32Array, interleaved: bool) -> Float32Array:
        """x [rows, heads, head_dim], cos and sin [rows, rotary_dim / 2]."""
    def attend(
        self,
        q: Float32Array,
        k: Float32Array,
        v: Float32Array,
        dtype: str,
        scale: float,
        window: int,
        softcap: float,
        sinks: Float32Array | None,
        step_tokens: int,
        in_chunks: bool,
        bias: Float32Array | None = None,
        gate: Float32Array | None = None,
        segment: int = 0,
    ) -> Float32Array:
        """Causal attention of the last tokens of a context.

        q and gate [tokens, heads, head_dim], k and v [keys, kv_heads, head_dim].

        The cache is written in `dtype`; `step_tokens` query tokens go together; `in_chunks` computes chunks of keys
        apart and merges them. bias [heads, 2 * reach + 31]: DistanceBias's in kernels.h.
        Returns [tokens, heads, head_dim].
        """
    def route(
        self,
        logits: Float32Array,
        active: int,
        score: str,
        correction: Float32Array | None = None,
        groups: int = 1,
        groups_kept: int = 1,
        group_best: int = 2,
        renormalized: bool = False,
        sum_epsilon: float = 0.0,
        scale: float = 1.0,
        jitter: float = 0.0,
    ) -> tuple[Int32Array, Float32Array]:
        """Experts chosen by logits [rows, experts] and their weights, both [rows, active]: config.py's Experts."""
    def combine(
        self,
        results: Float32Array,
        weights: Float32Array,
        place: Int32Array,
        scale: float = 1.0,
        residual: Float32Array | None = None,
    ) -> Float32Array:
        """scale * (sum over slots of weights * results[place]) + residual; weights and place [rows, slots]."""
    def short_conv(
        self,
        b: Float32Array,
        c: Float32Array | None,
        x: Float32Array | None,
        taps: Float32Array,
        state: Float32Array,
        bias: Float32Array | None = None,
        first_output: int = 0,
        plain: bool = False,
    ) -> tuple[Float32Array, Float32Array]:
        """Rows from first_output on, and the state after them; b, c, x [rows, channels], taps [width, channels], state
        [width - 1, channels]: kernels.h's ShortConvTask."""
    def mamba2(
        self,
        x: Float32Array,
        b: Float32Array,
        c: Float32Array,
        dt: Float32Array,
        dt_bias: Float32Array,
        a_log: Float32Array,
        d: Float32Array,
        state: Float32Array,
        dt_scale: float = 1.0,
        dt_least: float = 0.0,
        dt_most: float = math.inf,
    ) -> tuple[Float32Array, Float32Array]:
        """y like x, and the state after the rows; x [rows, heads, head_dim], b and c [rows, groups, state_dim],
        dt [rows, heads], dt_bias, a_log and d [heads], state [heads, floats]: kernels.h's Mamba2Task, state_floats."""
    def selective_scan(
        self,
        x: Float32Array,
        dt: Float32Array,
        z: Float32Array,
        b: Float32Array,
        c: Float32Array,
        a: Float32Array,
        d: Float32Array,
        state: Float32Array,
        first_output: int = 0,
    ) -> tuple[Float32Array, Float32Array]:
        """Rows from first_output on, and the state after them; x, dt and z [rows, channels], b and c [rows, state_dim],
        d [channels], a and state [panels of 16 channels, state_dim, 16]: kernels.h's SelectiveScanTask."""
    def rg_lru(
        self,
        x: Float32Array,
        r: Float32Array,
        i: Float32Array,
        y: Float32Array,
        rate: Float32Array,
        state: Float32Array,
        first_output: int = 0,
        begins: bool = False,
    ) -> tuple[Float32Array, Float32Array]:
        """Rows from first_output on, and the state after them; x, r, i and y [rows, channels], rate and state
        [channels]: kernels.h's RgLruTask."""
    def token_shift(
        self, x: Float32Array, before: Float32Array | None, mix: Float32Array, first_output: int = 0
    ) -> Float32Array:
        """Rows from first_output on, mixed with those before; x [rows, columns]: kernels.h's TokenShiftTask."""
    def squash(self, x: Float32Array, by: str) -> Float32Array:
        """Rows with "none", "tanh" or "sigmoid" of each number: kernels.h's SquashTask."""
    def rwkv7(
        self,
        rows: Float32Array,
        mix: Float32Array | None,
        first: Float32Array | None,
        vectors: Float32Array,
        eps: float,
        state: Float32Array,
        first_output: int = 0,
    ) -> tuple[Float32Array, Float32Array]:
        """Rows from first_output on, and the state after them; rows [r, w, k, v, a and g, rows, dim], mix and first
        [rows, dim], vectors [k_k, k_a, r_k, norm and norm_bias, dim], state [panels of 16 columns, dim, 16]:
        kernels.h's Rwkv7Task."""
    def gated_norm(
        self,
        y: Float32Array,
        z: Float32Array,
        weight: Float32Array | None,
        groups: int = 1,
        eps: float = 1e-5,
        gate_first: bool = True,
        z_scale: float = 1.0,
        by_sigmoid: bool = False,
    ) -> Float32Array:
        """Rows like y; y and z [rows, dim], weight [dim]: kernels.h's GatedNormTask."""
    def delta_gates(
        self,
        a: Float32Array,
        b: Float32Array,
        a_log: Float32Array,
        dt_bias: Float32Array,
        beta_scale: float = 1.0,
        least: float = 0.0,
    ) -> tuple[Float32Array, Float32Array]:
        """decay [rows, heads * channels] and beta [rows, heads] of a like decay, b like a, of which the first columns
        count, a_log [heads] and dt_bias [heads * channels]: kernels.h's DeltaGatesTask."""
    def delta_rule(
        self,
        q: Float32Array,
        k: Float32Array,
        v: Float32Array,
        decay: Float32Array,
        beta: Float32Array,
        state: Float32Array,
    ) -> tuple[Float32Array, Float32Array]:
        """What a value head reads in each row, and its state after them; q, k [rows, key_dim], v [rows, value_dim],
        decay [rows] or [rows, key_dim], beta [rows], state [floats]: kernels.h's DeltaRuleTask, state_floats."""
    def row_max(self, x: Float32Array) -> tuple[float, int, bool]: ...
    def row_maxima(self, x: Float32Array, mask: UInt32Array | None) -> Float32Array:
        """Of each 64 values; a mask has a bit for each value, bit i % 32 of word i / 32."""
    def row_exp_sum(
        self, x: Float32Array, max: float, inverse_temperature: float, mask: UInt32Array | None = None
    ) -> tuple[float, Float32Array]: ...
    def row_collect(
        self, x: Float32Array, threshold: float, mask: UInt32Array | None = None, maxima: Float32Array | None = None
    ) -> tuple[Int32Array, Float32Array]: ...
    def sample(
        self, logits: Float32Array, *columns: npt.NDArray[np.generic]
    ) -> tuple[Int32Array, npt.NDArray[np.bool_], Float32Array, Int32Array, Int32Array, Float32Array]:
        """Executor.sample from these logits [rows, vocab]."""
    def score(
        self, logits: Float32Array, rows: Int32Array, tokens: Int32Array, alternatives: int
    ) -> tuple[Float32Array, Int32Array, Int32Array, Float32Array]:
        """Executor.score from these logits."""

# --- threads/topology.h ---

class Cpu:
    """One CPU this process may run on. `core`: lowest CPU id of its physical core; `speed`, `kind`: 0 is unknown."""

    @property
    def id(self) -> int: ...
    @property
    def core(self) -> int: ...
    @property
    def node(self) -> int: ...
    @property
    def speed(self) -> int: ...
    @property
    def kind(self) -> int: ...

class Memory:
    """Bytes: the limit, and what of it is not in use."""

    @property
    def total_bytes(self) -> int: ...
    @property
    def available_bytes(self) -> int: ...

class Topology:
    """What this process may use, after affinity, cpusets and cgroup limits; None: no such limit."""

    @property
    def cpus(self) -> list[Cpu]: ...
    @property
    def memory_nodes(self) -> list[int]: ...
    @property
    def node_memory(self) -> dict[int, Memory]: ...
    @property
    def quota_cpus(self) -> float | None: ...
    @property
    def machine(self) -> Memory: ...
    @property
    def cgroup(self) -> Memory | None: ...

def topology(root: str = "") -> Topology:
    """Read /sys and /proc below `root`.

    Raises: RuntimeError naming the file when there is no list of CPUs.
    """

def parse_id_list(text: str) -> list[int]:
    """ "0-2,5" is [0, 1, 2, 5]. Raises: ValueError naming the text."""
