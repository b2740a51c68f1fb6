"""A damaged database: what is damaged, what is still readable, and a new database made from it."""
