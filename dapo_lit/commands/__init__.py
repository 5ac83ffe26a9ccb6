"""What the commands do once their command line has been checked; each is started by the file of its name above."""
