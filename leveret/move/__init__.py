"""`leveret move`: messages from the queues of one AMQP 0-9-1 broker to those of another.

`amqp_client` talks to a broker, `mover` moves one queue, `state` remembers on disk what a killed
run has done. Works between any two brokers, in either direction; nothing here needs Leveret's own
broker.
"""
