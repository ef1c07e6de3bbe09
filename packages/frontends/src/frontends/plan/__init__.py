"""What a plan consists of, and the schedules that it names."""
