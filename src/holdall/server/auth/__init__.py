"""Who may use a store through the server: tokens, their quotas, and the gate that checks each request."""
