"""One step's samples: collection, dynamic sampling, metrics."""
