"""vLLM's own servers, reached over HTTP."""
