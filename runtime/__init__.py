"""What a compiled library stands on: headers, the loader and its native binding."""

if __name__ != "luminal.runtime":
    raise ImportError(
        f"this package is luminal.runtime, but it was imported as {__name__!r}: "
        "write `import luminal.runtime`, and keep the repository's root off sys.path"
    )
