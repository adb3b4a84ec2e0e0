"""What all processes of a site have to hear of: options that change, and cached values that are stale."""
