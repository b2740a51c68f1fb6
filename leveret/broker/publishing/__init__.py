"""Publish validation, dead-lettering, and exchanges that delay, deduplicate or remember."""
