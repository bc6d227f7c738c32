"""One line each for the trainers people use. Nothing is imported here: every file needs its own library."""
