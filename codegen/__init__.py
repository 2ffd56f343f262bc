"""Code generation: loop nests in, a bundle of source text and then a built library out."""

if __name__ != "luminal.codegen":
    raise ImportError(
        f"this package is luminal.codegen, but it was imported as {__name__!r}: "
        "write `import luminal.codegen`, and keep the repository's root off sys.path"
    )
