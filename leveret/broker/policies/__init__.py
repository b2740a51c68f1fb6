"""Policies, operator policies and runtime parameters, and how they take effect."""
