"""Problems with checkable answers: sources, prompt templates, generated tasks."""
