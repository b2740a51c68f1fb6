"""The kinds of run. Each is a value: prepare once per broker, run once per round, clean up."""
