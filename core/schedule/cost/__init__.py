"""Estimates of time and traffic, from nests, sizes and the description of a target; they change nothing."""
