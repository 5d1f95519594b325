"""MCP: the store as tools, resources and prompts for models, over stdio and over HTTP."""
