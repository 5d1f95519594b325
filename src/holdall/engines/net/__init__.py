"""What the engines that talk to a server share: a connection pool, a listener thread, and the delay between retries."""
