"""Logs at the level of the broker: create, recover, describe, and consumer groups over HTTP."""
