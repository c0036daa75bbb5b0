"""What a hospital learns about its images before anything is trained, for its own eyes alone."""
