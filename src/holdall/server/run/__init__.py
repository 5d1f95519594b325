"""Running the server: uvicorn and its workers, logs."""
