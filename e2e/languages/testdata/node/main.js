const { evaluate } = require('./rpn');

console.log(process.argv[2], '=', evaluate(process.argv[2]));
