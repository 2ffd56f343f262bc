"""Why luminal issues more instructions of a class than Triton, by kind of work, architecture (empty: all) and class."""

WGMMA = (
    "Attention multiplies with `mma.sync`, one instruction of a warp for 2,048 multiply-adds, and brings both operands "
    "into registers with `ldmatrix`; Triton has `wgmma` on sm_90, one for up to 65,536, which reads shared memory "
    "itself."
)
COPIES = (
    "A small tile has few products for each copy, each of which computes its place anew in every step; Triton moves "
    "pointers on."
)
FRAGMENTS = (
    "`ldmatrix` brings two matrices of B at once where it could bring four (`load_b` in "
    "`runtime/include/luminal/device/fragment_mma.hpp`), and a warp's tile has half the elements of Triton's or "
    "less, so that fewer products share what is loaded."
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
SCORES = (
    "Scores go through shared memory, 2 bytes at a time: fragments are stored, threads that have whole rows read them "
    "twice and store weights, which fragments read (`core/schedule/grid/stream.py`). Triton's stay in registers, and "
    "their maxima and sums are exchanged by shuffles."
)
QUERIES = (
    "The rows of queries are copied again for each block of keys, and a block has 64 of them, Triton's 128; more "
    "barriers stand between the products, the reductions and the copies."
)
ROUNDED = (
    "Scores are rounded twice and weights once, one at a time, as PyTorch's code spells it, and an exponential takes "
    "six instructions besides the device's `ex2`, by which it is within 2 ULP and may be subnormal "
    "(`runtime/include/luminal/device/math_exp2.hpp`); Triton's tutorial rounds weights alone, two at once, and has "
    "one besides `ex2`. This is accuracy, and stays."
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
    ("attention", "sm_90", "tensor"): WGMMA,
    ("attention", "", "shared"): SCORES,
    ("attention", "", "other"): SCORES,
    ("attention", "", "global"): QUERIES,
    ("attention", "", "barrier"): QUERIES,
    ("attention", "", "integer"): ROUNDED,
    ("attention", "", "float"): ROUNDED,
    ("softmax", "", "integer"): ROUNDING,
    ("softmax", "", "float"): POWERS,
    ("softmax", "", "other"): SLOW,
    ("norm", "", "integer"): WIDENING,
    ("norm", "", "other"): SLOW,
}
