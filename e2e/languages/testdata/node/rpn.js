const { operators } = require('./words');

exports.evaluate = (text) => {
  const stack = [];
  for (const word of text.split(/\s+/)) {
    if (word in operators) {
      const right = stack.pop();
      stack.push(operators[word](stack.pop(), right));
    } else {
      stack.push(Number(word));
    }
  }
  if (stack.length !== 1) throw new Error(`${stack.length} values are left of ${text}`);
  return stack[0];
};
