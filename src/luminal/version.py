"""The version of this package, which exported models carry."""

VERSION = "0.1.0"
