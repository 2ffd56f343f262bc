"""The loop nest: its statements, their meaning in Python, their text, and how they are read and rewritten; nothing
here knows a graph or a target."""
