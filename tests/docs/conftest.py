"""Which tests of the documentation run."""

from leveret.model import form

# It traces Python functions, which compiled modules do not have.
collect_ignore = ["test_walk.py"] if form.current() == form.COMPILED else []
