"""Scheduling on the event loop, timers, commit callbacks, alarms and resource limits."""
