"""Hostile and careless peers: the rows of the reliability plan about security."""
