"""Full-text and vector search: the same ranking on every engine."""
