"""Scheduling: from a Graph of primitives to a Program of loop nests, in packages that build on each other.

    nest < cost < contraction < numeric < prepare < fusion < lower < transform < grid < choose < program

A package imports only those before it. Each says in its first sentence what it may touch.
"""
