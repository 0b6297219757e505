exports.operators = { '+': (a, b) => a + b, '-': (a, b) => a - b, '*': (a, b) => a * b };
