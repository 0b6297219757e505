import operator

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
