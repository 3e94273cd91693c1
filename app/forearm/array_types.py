"""Array types of numpy that the engine and the model share, one name for each element type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int8Array = npt.NDArray[np.int8]
UInt8Array = npt.NDArray[np.uint8]
UInt16Array = npt.NDArray[np.uint16]
Int32Array = npt.NDArray[np.int32]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
