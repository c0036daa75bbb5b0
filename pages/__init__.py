"""Pages for people, at the server and at hospitals: HTML, plots, and figures in words.

templates/ has the pages. server_app/report and client_app/afterwards/report gather their values.
"""
