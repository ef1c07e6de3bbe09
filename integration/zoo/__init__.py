"""Models that people train, as they write them: what `frontends` must plan and run unchanged."""
