"""Live streams as the pages and other clients receive them."""
