"""Pages for people, at the server and at hospitals: HTML, plots, and figures in words."""
