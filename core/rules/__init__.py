"""Rules of two classes.

``RULES`` are *exact*: each holds bit for bit, NaN, infinities and signed zero included (which NaN apart), and runs to a
fixpoint anywhere. ``quotient`` has one more, for machines on which a product costs less than a division. The law for
them: the right side is never more work than the left; no rule only exchanges operands; no rule moves a rounding; and a
rule may rely on bounds only where ``core.symbolic`` proves them.

Others are *real*: they hold over the real numbers, and say who applies them and how near the right side is
(``pattern.Real``). ``functions`` is a table of such identities; stages of ``schedule.numeric`` have others.
"""

from luminal.core.rules import arithmetic, cast, constant, logic, select, view
from luminal.core.rules.pattern import Rule

RULES: tuple[Rule, ...] = (
    *constant.DECISIONS,
    *arithmetic.RULES,
    *logic.RULES,
    *select.RULES,
    *cast.RULES,
    *view.RULES,
    *constant.FOLDING,  # last: what repeats has become a view of what does not
)
