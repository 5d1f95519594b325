"""Access to the server: tokens, their quotas, and the gate that checks each request."""
