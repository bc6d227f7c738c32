"""The web server: the app, its routes, and who may see them.

What a page shows is `page`, what is pushed to it is `live`.
"""
