"""Show a plan as text, picture or HTML page; explain its choices; compare it with another plan."""
