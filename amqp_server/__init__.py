"""AMQP 0-9-1 to domain calls: sockets (transport), frames (wire), meaning (connection, channel)."""

if __name__ != "leveret.amqp_server":  # the folder of a checkout whose root is on sys.path
    raise ImportError("import leveret.amqp_server instead of amqp_server", name=__name__)
