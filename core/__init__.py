"""The compiler's core: from a Graph of primitives to a Program of loop nests."""

if __name__ != "luminal.core":
    raise ImportError(
        f"this package is luminal.core, but it was imported as {__name__!r}: "
        "write `import luminal.core`, and keep the repository's root off sys.path"
    )
