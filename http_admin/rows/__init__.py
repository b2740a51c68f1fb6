"""Builds the rows that `schemas/` describes from the broker's objects."""
