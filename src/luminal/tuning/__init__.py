"""Schedules chosen by measurement: ``records`` of what was measured, and ``search``, which measures."""
