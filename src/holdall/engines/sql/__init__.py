"""What the SQL engines share: ops as programs over SQL statements, and a dialect for what differs."""
