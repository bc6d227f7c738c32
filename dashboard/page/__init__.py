"""The Dash page: layout, callbacks, and views, which are pure functions of data.

What changes by itself is pushed by `live`.
"""
