"""Classic and quorum queues: order, limits, dispatch to consumers, dead-lettering."""
