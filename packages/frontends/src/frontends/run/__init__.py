"""What running a plan takes in any framework: routes between processes, mail, and checks."""
