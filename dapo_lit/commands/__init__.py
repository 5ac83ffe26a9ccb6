"""The work of each command, started by the file of its name above once the command line has been checked."""
