"""What the API sends: the type of every row, written once.

Rows are `TypedDict`s. A function in `rows/` returns the dict and mypy checks its keys and values;
pydantic reads the same type as a model, so FastAPI documents, validates and serializes it. Large
lists write the dicts without that (`json_response.py`); a `BaseModel` would have to be created for
each row first.

Request bodies are pydantic models and live beside their routes.
"""
