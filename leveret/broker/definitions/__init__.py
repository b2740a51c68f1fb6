"""Definitions: export, parsing a definitions file, import."""
