"""Why luminal issues more instructions of a class than Triton, by kind of work, architecture (empty: all) and class."""

COPIES = (
    "A small tile has few products for each copy, each of which computes its place anew in every step; Triton moves "
    "pointers on."
)
FRAGMENTS = (
    "A warp's tile has half the elements of Triton's or less, so that fewer products share what `ldmatrix` loads. And "
    "sums pass through shared memory in float32, where Triton rounds them first."
)
IDLE = (
    "Seven of ten are loads under a condition that never holds, which ptxas puts between products for their time; the "
    "rest are branches, and pauses where lanes wait for each other."
)
TILES = (
    "luminal's tiles are smaller, so that each element is read more often: `BlockCosts.tiles` in `core/grid.py` has "
    "none of 128 x 256 for single warps, and two stages have to fit 48 KiB (`Grid.shared`), where Triton asks for 96 "
    "to 144."
)
THROUGH = (
    "Sums pass through shared memory in float32, six instructions for eight of a thread "
    "(`runtime/include/luminal/device/regroup.hpp`), so that what is added to them is read 16 bytes at a time as well; "
    "Triton rounds them first, and moves half the bytes."
)
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
    "Scores are rounded to bfloat16, as PyTorch's code spells it, and weights stay exact where all scores of a row are "
    "as large as a mask; Triton's tutorial does neither. This is accuracy, and stays."
)
SLOW = (
    "A quotient, a reciprocal and a root branch around the code for subnormal numbers, which Triton's flush to zero: "
    "1.5 instructions for softmax and 3 for the norm, besides 8 shuffles. This is accuracy, and stays."
)

REASONS: dict[tuple[str, str, str], str] = {
    ("product", "sm_80", "shared"): FRAGMENTS,
    ("product", "sm_90", "shared"): THROUGH,
    ("product", "sm_80", "global"): TILES,
    ("product", "", "integer"): COPIES,
    ("product", "sm_80", "other"): IDLE,
    ("product", "sm_90", "other"): COPIES,
    ("product", "", "barrier"): DEPTH,
    ("attention", "", "barrier"): STAGES,
    ("attention", "", "float"): ROUNDED,
    ("softmax", "", "integer"): ROUNDING,
    ("softmax", "", "float"): POWERS,
    ("softmax", "", "other"): SLOW,
    ("norm", "", "integer"): WIDENING,
    ("norm", "", "other"): SLOW,
}
