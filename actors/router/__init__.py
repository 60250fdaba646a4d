"""The router: knows page by page which replica holds what, and says where each request should go."""
