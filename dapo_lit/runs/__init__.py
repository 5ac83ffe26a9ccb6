"""A run's folder in use: opened, resumed, saved, logged, stopped. How each file is written and read is in files/."""
