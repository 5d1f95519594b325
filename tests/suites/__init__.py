"""The frameworks' own tests, run on our faces: `make faces-suites`."""
