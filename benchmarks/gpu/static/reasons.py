"""Why luminal issues more instructions of a class than Triton, by kind of work, architecture (empty: all) and class."""

COPIES = (
    "A small tile has few products for each copy, each of which computes its place anew in every step; Triton moves "
    "pointers on."
)
FRAGMENTS = (
    "A warp's tile has half the elements of Triton's or less, so that fewer products share what `ldmatrix` loads."
)
TILES = (
    "luminal's tiles are smaller, so that each element is read more often: `BlockCosts.tiles` in `core/grid.py` has "
    "none of 128 x 256, and two stages have to fit 48 KiB (`Grid.shared`), where Triton asks for 96 to 144. And a "
    "thread stores each element of the result by itself, 2 bytes at a time (after the sum in "
    "`core/schedule/grid/stage.py`), where Triton goes through shared memory and stores 16."
)
STORES = "A thread rounds and stores each element of the result by itself, where Triton rounds two at once."
DEPTH = (
    "A stage is 64 bytes deep (`BlockCosts.depth` in `core/grid.py`), Triton's 128: luminal waits twice as often, "
    "and with small tiles for fewer products."
)
ROUNDING = (
    "The exponential scales by a power of two that it makes with integers "
    "(`runtime/include/luminal/device/math_exp2.hpp`), and each element of bfloat16 is widened and packed by itself."
)
WIDENING = "Each element of bfloat16 is widened and packed by itself, where Triton has two at once."
POWERS = (
    "An exponential takes six instructions besides the device's `ex2`, by which it is within 2 ULP and may be "
    "subnormal (`runtime/include/luminal/device/math_exp2.hpp`), and maxima keep NaN; Triton has one besides `ex2`. "
    "This is accuracy, and stays."
)
STAGES = (
    "Each operand has one stage (`core/schedule/grid/held.py`): a barrier stands before the columns of the next block "
    "are copied, and one before the rows of the second product are; Triton has three stages."
)
ROUNDED = (
    "Scores are rounded to bfloat16, as PyTorch's code spells it, and rows of scores as large as masks of models are "
    "get weights that are exact; Triton's tutorial does neither. This is accuracy, and stays."
)
SLOW = (
    "A quotient, a reciprocal and a root branch around the code for subnormal numbers, which Triton's flush to zero. "
    "This is accuracy, and stays."
)

REASONS: dict[tuple[str, str, str], str] = {
    ("product", "", "shared"): FRAGMENTS,
    ("product", "sm_80", "global"): TILES,
    ("product", "", "float"): STORES,
    ("product", "", "integer"): COPIES,
    ("product", "", "other"): COPIES,
    ("product", "", "barrier"): DEPTH,
    ("attention", "", "barrier"): STAGES,
    ("attention", "", "float"): ROUNDED,
    ("softmax", "", "integer"): ROUNDING,
    ("softmax", "", "float"): POWERS,
    ("softmax", "", "other"): SLOW,
    ("norm", "", "integer"): WIDENING,
    ("norm", "", "other"): SLOW,
}
