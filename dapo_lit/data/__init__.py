"""Problems with checkable answers: sources, prompt templates, filters, order."""
