"""Walk calls, tools and scopes through the layers."""
