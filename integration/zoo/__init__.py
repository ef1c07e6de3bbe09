"""Models that people train, written as they write them; `frontends` must plan and run them
unchanged."""
