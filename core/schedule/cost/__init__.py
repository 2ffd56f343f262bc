"""Estimates of time and traffic, from nests, sizes and the description of a target; they change nothing.

Times are cycles of one core, at typical sizes, by ``Target.costs``; those of blocks of threads count as if a processor
did one multiply-add a cycle. Traffic is in bytes unless a function says elements. Estimates serve choices alone:
compare two only where the same function gives both.
"""
