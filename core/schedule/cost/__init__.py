"""Estimates of time and traffic, from nests, sizes and the description of a target; they change nothing.

Times are cycles of one core, at typical sizes, by ``Target.costs``; those of blocks of threads are as if a processor
did one multiply-add a cycle. Traffic is in bytes where a function does not say elements. They choose and no more: two
estimates may be compared where one function gives both.
"""
