"""When each action of a schedule runs, and what memory it takes."""
