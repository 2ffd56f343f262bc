"""Why luminal issues more instructions of a class than Triton, by kind of work, architecture (empty: all) and class."""

WGMMA = (
    "luminal multiplies with `mma.sync`, one instruction of a warp for 2,048 multiply-adds, and brings both "
    "operands into registers with `ldmatrix`; Triton has `wgmma` on sm_90, one for up to 65,536, which reads shared "
    "memory itself."
)
COPIES = (
    "luminal's loops that copy a stage say nothing of how often they turn (`for (c = thread; c < count; c += "
    "threads)`, `_iterations` in `codegen/threads.py`), so nvcc writes out four turns, the rest apart, and branches "
    "around each; and each copy computes its place anew in every step, with signed divisions. Triton moves pointers "
    "on."
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
DEPTH = (
    "A stage is 64 bytes deep (`BlockCosts.depth` in `core/grid.py`), Triton's 128: luminal waits twice as often, "
    "and with small tiles for fewer products."
)
ROUNDING = (
    "bfloat16 is rounded and widened by integer arithmetic (`runtime/include/luminal/device/float16.hpp`): about "
    "six and four instructions for an element, where sm_80 rounds two with one, and widening is one shift."
)
POWERS = (
    "The exponential is a polynomial that is rounded nearly once (`runtime/include/luminal/device/math_exp2.hpp`), "
    "about twenty instructions, and maxima keep NaN; Triton takes the approximate `ex2`. This is accuracy, and "
    "stays."
)
SUMS = (
    "luminal widens with a comparison for NaN (`runtime/include/luminal/device/float16.hpp`), and computes "
    "differences from the mean twice, as it reads the row three times."
)
THREE = (
    "Attention is three kernels here: a product that writes all scores, a softmax that reads and writes them, "
    "another product that reads them; no chain is chosen for this length (`core/schedule/fusion`, "
    "`core/schedule/choose`). Triton's is one pass that keeps scores in registers."
)
ROWS = (
    "luminal goes through a row two or three times, and reads it from memory each time, a softmax 8 bytes at a time "
    "(`BlockCosts.each` in `core/grid.py`) and its powers from shared memory, in float32; Triton holds the row in "
    "registers (`core/schedule/lower` and `core/schedule/choose` would have to keep a thread's part of a row)."
)

REASONS: dict[tuple[str, str, str], str] = {
    ("product", "sm_90", "tensor"): WGMMA,
    ("product", "sm_90", "shared"): WGMMA,
    ("product", "", "shared"): FRAGMENTS,
    ("product", "", "global"): TILES,
    ("product", "", "float"): TILES,
    ("product", "", "integer"): COPIES,
    ("product", "", "other"): COPIES,
    ("product", "", "barrier"): DEPTH,
    ("attention", "sm_90", "tensor"): WGMMA,
    **{("attention", "", name): THREE for name in ("shared", "global", "integer", "float", "barrier", "other")},
    ("softmax", "", "integer"): ROUNDING,
    ("softmax", "", "float"): POWERS,
    **{("softmax", "", name): ROWS for name in ("shared", "global", "barrier", "other")},
    ("norm", "", "integer"): ROUNDING,
    ("norm", "", "float"): SUMS,
    **{("norm", "", name): ROWS for name in ("shared", "global", "barrier", "other")},
}
