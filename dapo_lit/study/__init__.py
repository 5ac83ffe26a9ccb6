"""Finished runs read, compared and drawn. Imports nothing else of this package."""
