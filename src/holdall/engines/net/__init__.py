"""What engines that talk to a server share: sockets, a connection pool, a listener thread, and pauses of retries."""
