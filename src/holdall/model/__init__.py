"""What is stored and how it is named: keys, values, files as values, filters, globs, paths to fields, cursors."""
