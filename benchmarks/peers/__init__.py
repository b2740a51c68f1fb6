"""NATS JetStream and Redis Streams: the same load in their protocols, on plain sockets."""
