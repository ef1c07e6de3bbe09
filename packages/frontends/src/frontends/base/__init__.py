"""What every floor above speaks of: lines of code, formats, arguments, other processes."""
