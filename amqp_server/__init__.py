"""AMQP 0-9-1 to domain calls, in three floors: transport (bytes), wire (frames), session (meaning)."""
