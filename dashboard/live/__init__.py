"""What is pushed to an open page: the hub, the view of a run, its message and the binary form.

The rest of the page is ordinary callbacks, in `page`.
"""
