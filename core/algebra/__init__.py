"""Which of many equal programs is computed: sums of products over named axes, in the order that costs least.

Reads and makes graphs of primitives. Imports nothing of ``core.schedule``: how a form is computed is not its matter.
"""
