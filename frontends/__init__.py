"""Front ends: each reads one kind of model and hands on a core Graph."""

if __name__ != "luminal.frontends":
    raise ImportError(
        f"this package is luminal.frontends, but it was imported as {__name__!r}: "
        "write `import luminal.frontends`, and keep the repository's root off sys.path"
    )
