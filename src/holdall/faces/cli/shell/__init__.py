"""What connects a command with the shell: its output, local files, completion."""
