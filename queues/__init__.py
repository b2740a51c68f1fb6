"""Queues: enqueue, limit, deliver, settle. Knows neither sockets nor exchanges nor SQL.

Import from the modules: this one imports nothing, so that readers of stored data, Spark's among
them, load only what they use.
"""

if __name__ != "leveret.queues":  # the folder of a checkout whose root is on sys.path
    raise ImportError("import leveret.queues instead of queues", name=__name__)
