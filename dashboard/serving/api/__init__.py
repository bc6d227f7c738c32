"""The HTTP API: `/api/v1`, one file a resource, and the four routes under `/training-logs/debug`.

Behind the token and the Origin check like everything else (`security.py`). Handlers are plain functions,
which FastAPI calls on worker threads.
"""
