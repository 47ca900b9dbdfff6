"""What is to be expected: formulas and estimates. Pure, as `account` is: no clock, file, environment or logging; standard library only."""
