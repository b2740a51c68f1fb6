"""Hostile and careless peers: the torture rows about security and limits."""
