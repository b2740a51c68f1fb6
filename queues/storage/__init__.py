"""The only package that waits for the disk: schema, writer thread, SQL store, memory store."""
