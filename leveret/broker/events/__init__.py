"""Events the broker publishes about itself, and the firehose tracer."""
