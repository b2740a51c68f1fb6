"""One module per group of endpoints; `ROUTERS` is all of them."""
