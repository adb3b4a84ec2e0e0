"""What several services use: rates, waiting, leases, and probes of the server."""
