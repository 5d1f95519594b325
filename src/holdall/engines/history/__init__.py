"""How engines keep old values: in a table that a trigger fills while history is on, and in the keys of Redis."""
