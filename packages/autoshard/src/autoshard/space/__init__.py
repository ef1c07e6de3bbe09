"""All choices and their prices: strategies of operators, and conversions between specs."""
