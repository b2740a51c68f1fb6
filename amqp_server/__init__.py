"""AMQP 0-9-1 to domain calls, on three floors: bytes (server), frames (wire), meaning (session)."""
