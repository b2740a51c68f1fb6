"""The only room that waits for disk: schema, writer thread, SQL store, memory store."""
