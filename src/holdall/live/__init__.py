"""Watching for changes, notification, and leases."""
