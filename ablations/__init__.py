"""Designs of studies and names of arms; below it, finished runs read, compared, drawn and reported."""
